// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WatchFile calls changed whenever the content of the file at path may have changed, until ctx is done, and once when
// the watch is set up. A write is reported when the writer closes the file; a replacement, by a rename or a changed
// link in the same directory, at once. changed is called from one goroutine. Only errors that end the watch are
// returned.
func WatchFile(ctx context.Context, path string, changed func()) error {
	const mask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE | unix.IN_DELETE
	return watch(ctx, filepath.Dir(path), mask, func(b []byte) error {
		if len(b) == 0 || concerns(b, path) {
			changed()
		}
		return nil
	})
}

// concerns reports whether one of the events may be for the file at path.
func concerns(b []byte, path string) bool {
	dir, base := filepath.Split(path)
	for what, name := range events(b) {
		if what&unix.IN_Q_OVERFLOW != 0 {
			return true
		}
		if what&unix.IN_CREATE != 0 { // a new file is reported when its writer closes it
			info, err := os.Lstat(dir + name)
			if err != nil || info.Mode().Type() != os.ModeSymlink {
				continue
			}
		}
		if name == base || linked(path) {
			return true
		}
	}
	return false
}

// linked reports whether the file is a symbolic link, so that other names in the directory matter.
func linked(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSymlink
}
