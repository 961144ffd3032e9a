// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// recheck is how often a silent log's container is asked whether it still runs. It costs one question to the runtime, and only
// while a client follows.
const recheck = time.Second

// follower reads one log across rotation.
type follower struct {
	path string
	f    *os.File // nil: not there yet
	ls   *lines
	w    *writer
}

// follow writes what comes, across rotation, until the container has ended or ctx is done. f is nil when the log is not there yet.
func follow(ctx context.Context, path string, f *os.File, o Options, w *writer) error {
	fl := &follower{path: path, w: w}
	fl.use(f)
	defer fl.close()
	watch, err := newWatch(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer watch.stop()
	for {
		alive := o.Alive == nil || o.Alive(ctx)
		if err := fl.catchUp(!alive); err != nil || !alive {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // the client has gone
		case <-watch.news:
		case <-time.After(recheck):
		}
	}
}

func (fl *follower) use(f *os.File) {
	fl.f, fl.ls = f, nil
	if f != nil {
		fl.ls = &lines{r: bufio.NewReaderSize(f, block)}
	}
}

func (fl *follower) close() {
	if fl.f != nil {
		_ = fl.f.Close() // read only
	}
}

// catchUp writes all that is there, going over to a new file where the log was rotated. last: nothing more will come.
func (fl *follower) catchUp(last bool) error {
	for {
		if err := fl.drain(false); err != nil {
			return err
		}
		next, err := reopen(fl.path, fl.f)
		if err != nil {
			return err
		}
		if next == nil {
			return fl.drain(last)
		}
		if err := fl.drain(true); err != nil { // what came between the two looks
			_ = next.Close() // the reason is err
			return err
		}
		fl.close()
		fl.use(next)
	}
}

func (fl *follower) drain(last bool) error {
	if fl.ls == nil {
		return nil
	}
	return drain(fl.ls, fl.w, last)
}

// reopen returns the file at path when it is another than f; nil when it is the same, or none is there.
func reopen(path string, f *os.File) (*os.File, error) {
	next, err := os.Open(path) //nolint:gosec // the runtime named it
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if f == nil {
		return next, nil
	}
	a, errA := f.Stat()
	b, errB := next.Stat()
	if err := errors.Join(errA, errB); err != nil {
		_ = next.Close() // the reason is err
		return nil, fmt.Errorf("look at log: %w", err)
	}
	if os.SameFile(a, b) {
		if pos, err := f.Seek(0, io.SeekCurrent); err == nil && b.Size() < pos { // truncated in place
			return next, nil
		}
		_ = next.Close() // read only
		return nil, nil
	}
	return next, nil
}

// dirWatch tells of changes in a log's directory.
type dirWatch struct {
	f    *os.File
	news chan struct{}
	done chan struct{}
}

func newWatch(dir string) (*dirWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	w := &dirWatch{f: os.NewFile(uintptr(fd), "inotify"), news: make(chan struct{}, 1), done: make(chan struct{})} //nolint:gosec // a descriptor
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO); err != nil && !errors.Is(err, unix.ENOENT) {
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
		select {
		case w.news <- struct{}{}:
		default:
		}
	}
}

func (w *dirWatch) stop() {
	_ = w.f.Close() // wakes run
	<-w.done
}
