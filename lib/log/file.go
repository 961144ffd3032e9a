// SPDX-License-Identifier: Apache-2.0

// Package log limits the size of the program's own log: it has a log file with rotation by size, and slog handlers that
// deduplicate lines, limit their rate, and lower the level of libraries' lines; and it reads the log for `keelson
// logs`. cluster builds the log from it. It does not depend on the content of lines.
package log

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/logrotate"
)

// Policy returns the limits of the program's own log: 5 files of 10 MiB.
func Policy() logrotate.Policy { return logrotate.Default() }

// File is a log file that is rotated before it exceeds its maximum size. Each Write must be one or more complete lines;
// it goes to one file.
type File struct {
	path   string
	policy logrotate.Policy

	mu   sync.Mutex
	f    *os.File
	size int64
}

// Open opens or makes the file, for appending.
func Open(path string, p logrotate.Policy) (*File, error) {
	p = p.Complete()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l := &File{path: path, policy: p}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *File) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	l.f = f
	l.size = fi.Size()
	return nil
}

// Write appends b. If the rotation fails, it continues with the same file.
func (l *File) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return 0, os.ErrClosed
	}
	var rotateErr error
	if l.policy.MaxSize > 0 && l.size > 0 && l.size+int64(len(b)) > l.policy.MaxSize {
		rotateErr = l.rotateLocked()
	}
	n, err := l.f.Write(b)
	l.size += int64(n)
	return n, errors.Join(err, rotateErr)
}

func (l *File) rotateLocked() error {
	older, err := logrotate.Prune(l.path, l.policy.MaxFiles-2)
	if err != nil {
		return err
	}
	if _, err := logrotate.MoveAside(l.path, older, time.Now()); err != nil {
		return err
	}
	old := l.f
	if err := l.open(); err != nil {
		return err // continue with the old file, under its new name
	}
	l.redirect(old)
	return old.Close()
}

// redirect redirects standard output and error to the new file if they were the old one, as for a process in the
// background, so that the trace of a crash is in the log.
func (l *File) redirect(old *os.File) {
	was, err := old.Stat()
	if err != nil {
		return
	}
	for _, std := range []*os.File{os.Stdout, os.Stderr} {
		if fi, err := std.Stat(); err == nil && os.SameFile(fi, was) {
			_ = unix.Dup3(int(l.f.Fd()), int(std.Fd()), 0) // after an error the trace goes to the old file
		}
	}
}

// Close closes the file. Writes after it fail.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
