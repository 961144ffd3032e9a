// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// WatchFile calls changed whenever the file at path may be another one than before, until ctx ends, and once when it begins to look. A file
// that is written is reported when its writer has closed it; one that is put in its place, as by a rename or by another target of a link
// in the same directory, at once. changed is called from one goroutine. Only errors that end the watch are returned.
func WatchFile(ctx context.Context, path string, changed func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	events := os.NewFile(uintptr(fd), "inotify") //nolint:gosec // a descriptor is not negative
	defer func() { _ = events.Close() }()
	dir := filepath.Dir(path)
	const mask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE | unix.IN_DELETE
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = events.Close() })
	defer stop()
	changed()
	buf := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := events.Read(buf)
		if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if concerns(buf[:n], path) {
			changed()
		}
	}
}

// concerns tells whether one of the events may be about the file at path.
func concerns(events []byte, path string) bool {
	dir, base := filepath.Split(path)
	for len(events) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(events[4:]), int(binary.NativeEndian.Uint32(events[12:]))
		name, _, _ := strings.Cut(string(events[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		events = events[unix.SizeofInotifyEvent+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			return true
		}
		if mask&unix.IN_CREATE != 0 { // of a file: it will be written, and reported then
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
