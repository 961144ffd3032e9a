// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/signal"
)

// aliveInterval is the time between two checks that the container of a log without new entries still runs. A check is
// one CRI call, and happens only while a client follows.
const aliveInterval = time.Second

// follow writes new entries, across rotations, until the container has ended or ctx is done. The log may not exist yet.
func follow(ctx context.Context, c *reader, o Options, w *writer) error {
	watch, err := newWatch(filepath.Dir(c.path))
	if err != nil {
		return err
	}
	defer watch.stop()
	for {
		alive := o.Alive == nil || o.Alive(ctx)
		if err := c.catchUp(ctx, w, !alive); err != nil || !alive {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // the client has gone
		case <-watch.changed.C():
		case <-time.After(aliveInterval):
		}
	}
}

// catchUp writes all entries that exist, and switches to newer files after a rotation. last: the container has ended.
func (c *reader) catchUp(ctx context.Context, w *writer, last bool) error {
	for ctx.Err() == nil {
		if err := c.drain(w, false); err != nil {
			return err
		}
		seg, err := c.openNext()
		if err != nil {
			return err
		}
		if seg == nil {
			return c.drain(w, last)
		}
		if err := c.drain(w, true); err != nil { // entries since the last drain
			_ = seg.f.Close() // the reason is err
			return err
		}
		c.switchTo(seg)
	}
	return nil
}

func (c *reader) drain(w *writer, last bool) error {
	if c.cur == nil {
		return nil
	}
	return drain(c.ls, w, last)
}

// dirWatch notifies of changes in a log's directory (inotify).
type dirWatch struct {
	f       *os.File
	changed signal.Signal
	done    chan struct{}
}

func newWatch(dir string) (*dirWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	// a descriptor
	w := &dirWatch{f: os.NewFile(uintptr(fd), "inotify"), changed: signal.New(), done: make(chan struct{})}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO); err != nil &&
		!errors.Is(err, unix.ENOENT) {
		_ = w.f.Close() // the reason is err
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	go w.run() // ends when stop closes the descriptor
	return w, nil
}

func (w *dirWatch) run() {
	defer close(w.done)
	var buf [4096]byte
	for {
		if _, err := w.f.Read(buf[:]); err != nil {
			return
		}
		w.changed.Notify()
	}
}

func (w *dirWatch) stop() {
	_ = w.f.Close() // wakes run
	<-w.done
}
