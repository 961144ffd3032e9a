// SPDX-License-Identifier: Apache-2.0

package staticpod

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inotify waits for changes of one directory.
type inotify struct{ f *os.File }

func newInotify(dir string) (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify") // a descriptor
	const what = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ATTRIB
	if _, err := unix.InotifyAddWatch(fd, dir, what); err != nil {
		_ = f.Close() // the reason is err
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	return &inotify{f}, nil
}

// wait returns true after a change, false when stopped.
func (i *inotify) wait() bool {
	var buf [4096]byte
	_, err := i.f.Read(buf[:])
	return err == nil
}

func (i *inotify) stop() { _ = i.f.Close() } // wakes wait
