// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// settle is the delay after a change, to handle files that change together once.
const settle = 20 * time.Millisecond

// watcher is an inotify watch of directories, some of which may not exist yet.
type watcher struct{ events *os.File }

// watch watches each directory, or the nearest existing one above it.
func watch(dirs []string) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch CNI's directories: %w", err)
	}
	w := &watcher{os.NewFile(uintptr(fd), "inotify")} // a descriptor is not negative
	for _, dir := range dirs {
		if err := look(fd, filepath.Clean(dir)); err != nil {
			w.close()
			return nil, fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	return w, nil
}

// look watches dir, or the nearest existing directory above it.
func look(fd int, dir string) error {
	const there = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
		unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_MASK_ADD
	const above = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_MASK_ADD
	for {
		_, err := unix.InotifyAddWatch(fd, dir, there)
		if !isAbsent(err) {
			return err
		}
		for at := dir; isAbsent(err); {
			if at == filepath.Dir(at) {
				return err
			}
			at = filepath.Dir(at)
			if _, err = unix.InotifyAddWatch(fd, at, above); err != nil {
				continue
			}
			if _, gone := os.Stat(next(at, dir)); isAbsent(gone) {
				return nil
			} // it was made meanwhile: start again
		}
		if err != nil {
			return err
		}
	}
}

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// next returns the next path element from above towards dir.
func next(above, dir string) string {
	for filepath.Dir(dir) != above {
		dir = filepath.Dir(dir)
	}
	return dir
}

func (w *watcher) close() { _ = w.events.Close() }

// wait returns after a change, when ctx is done, or after d unless that is 0; true: something changed.
func (w *watcher) wait(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		_ = w.events.SetReadDeadline(time.Now().Add(d)) // inotify descriptors support deadlines
	}
	stop := context.AfterFunc(ctx, func() { _ = w.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 16<<10)
	_, err := w.events.Read(buf)
	if err == nil {
		pause(ctx, settle)
	}
	return err == nil
}
