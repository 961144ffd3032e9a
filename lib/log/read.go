// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"keelson/lib/linux"
	"keelson/lib/logrotate"
)

// Query selects lines of a log.
type Query struct {
	// Want reports whether a line is selected; nil: all.
	Want func(Line) bool
	// Since skips older lines.
	Since time.Time
	// Tail is the number of existing lines to return, the last ones; negative: all.
	Tail int
	// Follow continues with new lines until ctx is done.
	Follow bool
}

// Read calls yield for the lines of the log at path and of its rotated files, oldest first. A missing log is an error.
// With Follow it also follows rotations, and does not poll.
func Read(ctx context.Context, path string, query Query, yield func(Line) error) error {
	r := &reader{path: path}
	defer r.close()
	var kept []Line
	now := time.Time{} // of the last line with a time, which also counts for the trace after it
	pick := func(raw string, yield func(Line) error) error {
		l := ParseLine(raw)
		if t := l.Time(); !t.IsZero() {
			now = t
		}
		if now.Before(query.Since) || query.Want != nil && !query.Want(l) {
			return nil
		}
		return yield(l)
	}
	err := r.rest(func(raw string) error {
		return pick(raw, func(l Line) error {
			if query.Tail < 0 {
				return yield(l)
			}
			if kept = append(kept, l); len(kept) > 2*query.Tail {
				kept = append(kept[:0], kept[len(kept)-query.Tail:]...)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	for _, l := range kept[max(0, len(kept)-max(0, query.Tail)):] {
		if err := yield(l); err != nil {
			return err
		}
	}
	if !query.Follow {
		return nil
	}
	return linux.WatchAppended(ctx, path, func() error {
		return r.rest(func(raw string) error { return pick(raw, yield) })
	})
}

// reader reads the files of a log.
type reader struct {
	path string
	f    *os.File // nil: none was opened yet
	part []byte   // of an incomplete line
}

func (r *reader) close() {
	if r.f != nil {
		_ = r.f.Close()
	}
}

// rest calls yield for lines that were written since the last call.
func (r *reader) rest(yield func(string) error) error {
	for {
		if r.f != nil {
			if err := r.drain(yield); err != nil {
				return err
			}
		}
		next, err := r.next()
		if next == nil || err != nil {
			return err
		}
		if r.f != nil { // lines that were written before the rotation
			err = r.drain(yield)
		}
		r.close()
		if r.f = next; err != nil {
			return err
		}
	}
}

// next opens the file after the current one; nil: there is none.
func (r *reader) next() (*os.File, error) {
	for {
		before, err := r.files()
		if err != nil {
			return nil, err
		}
		f, err := r.after(before)
		if err != nil || f == nil {
			return nil, err
		}
		now, err := r.files()
		if err == nil && slices.Equal(now, before) {
			return f, nil
		}
		_ = f.Close() // it was rotated meanwhile: try again
		if err != nil {
			return nil, err
		}
	}
}

// files returns the files of the log, oldest first.
func (r *reader) files() ([]string, error) {
	older, err := logrotate.List(r.path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, f := range older {
		paths = append(paths, f.Path())
	}
	return append(paths, r.path), nil
}

// after opens the first file after the current one.
func (r *reader) after(paths []string) (*os.File, error) {
	if r.f != nil {
		was, err := r.f.Stat()
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		i := slices.IndexFunc(paths, func(p string) bool {
			fi, err := os.Stat(p)
			return err == nil && os.SameFile(fi, was)
		})
		paths = paths[i+1:] // all, if the current one was removed
	}
	for _, p := range paths {
		f, err := os.Open(p)
		if errors.Is(err, os.ErrNotExist) && (p != r.path || r.f != nil) {
			continue // it was just rotated
		}
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		return f, nil
	}
	return nil, nil // the end of the files is not an error
}

// longest is the maximum length of a line; longer ones are returned in parts.
const longest = 1 << 20

func (r *reader) drain(yield func(string) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.f.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			line, after, whole := bytes.Cut(rest, []byte("\n"))
			r.part = append(r.part, line...)
			if rest = after; whole || len(r.part) > longest {
				if err := yield(string(r.part)); err != nil {
					return err
				}
				r.part = r.part[:0]
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
}
