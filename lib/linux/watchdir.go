// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// WatchDir calls changed once when it begins to look, and whenever names in dir may be others than before, until ctx ends. Several
// changes may make one call. changed is called from one goroutine. Only errors that end the watch are returned; that dir was removed or
// moved away is one.
func WatchDir(ctx context.Context, dir string, changed func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	events := os.NewFile(uintptr(fd), "inotify") //nolint:gosec // a descriptor is not negative
	defer func() { _ = events.Close() }()
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
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
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		if left(buf[:n]) {
			return fmt.Errorf("watch %s: the directory was removed", dir)
		}
		changed()
	}
}

// left tells whether an event says that the directory itself has gone.
func left(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(events[4:]), int(binary.NativeEndian.Uint32(events[12:]))
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0 {
			return true
		}
		events = events[unix.SizeofInotifyEvent+size:]
	}
	return false
}
