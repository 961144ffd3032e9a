// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WatchFile calls changed whenever the file at path may be another one than before, until ctx ends, and once when it begins to look. A file
// that is written is reported when its writer has closed it; one that is put in its place, as by a rename or by another target of a link
// in the same directory, at once. changed is called from one goroutine. Only errors that end the watch are returned.
func WatchFile(ctx context.Context, path string, changed func()) error {
	const mask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE | unix.IN_DELETE
	return watch(ctx, filepath.Dir(path), mask, func(b []byte) error {
		if len(b) == 0 || concerns(b, path) {
			changed()
		}
		return nil
	})
}

// concerns tells whether one of the events may be about the file at path.
func concerns(b []byte, path string) bool {
	dir, base := filepath.Split(path)
	for what, name := range events(b) {
		if what&unix.IN_Q_OVERFLOW != 0 {
			return true
		}
		if what&unix.IN_CREATE != 0 { // of a file: it will be written, and reported then
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

// linked tells whether something else in the directory decides what the file is.
func linked(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSymlink
}
