// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options says which part of a log to write, as PodLogOptions does.
type Options struct {
	Since      time.Time // zero: from the beginning
	Tail       *int64    // last lines; nil: all
	LimitBytes *int64
	Timestamps bool
	Follow     bool
	Stdout     bool
	Stderr     bool
	// Alive is asked when a followed log has no more to read; once it says false the rest is read and Read returns.
	Alive func(ctx context.Context) bool
}

// errLimit ends reading when LimitBytes are written.
var errLimit = errors.New("limit reached")

// writer writes entries as clients want them.
type writer struct {
	w      io.Writer
	o      Options
	left   int64           // of LimitBytes; negative: no limit
	inside map[Stream]bool // a partial line was written last: no timestamp before its rest
}

func newWriter(w io.Writer, o Options) *writer {
	out := &writer{w: w, o: o, left: -1, inside: map[Stream]bool{}}
	if o.LimitBytes != nil {
		out.left = max(*o.LimitBytes, 0)
	}
	return out
}

func (w *writer) wants(s Stream) bool { return s == Stdout && w.o.Stdout || s == Stderr && w.o.Stderr }

// entry writes one parsed entry.
func (w *writer) entry(l Line) error {
	if !w.wants(l.Stream) || l.Time.Before(w.o.Since) {
		return nil
	}
	text := l.Text
	if w.o.Timestamps && !w.inside[l.Stream] {
		text = append([]byte(l.Time.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")+" "), text...)
	}
	w.inside[l.Stream] = l.Partial
	if w.left >= 0 && int64(len(text)) >= w.left {
		text = text[:w.left]
	}
	n, err := w.w.Write(text)
	if err != nil {
		return err
	}
	if w.left >= 0 {
		if w.left -= int64(n); w.left == 0 {
			return errLimit
		}
	}
	return nil
}

// Read writes the log at path to out. A log that is not there is empty; one that is followed may appear later.
func Read(ctx context.Context, path string, o Options, out io.Writer) error {
	if o.LimitBytes != nil && *o.LimitBytes <= 0 {
		return nil
	}
	w := newWriter(out, o)
	err := read(ctx, path, o, w)
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

func read(ctx context.Context, path string, o Options, w *writer) error {
	f, err := os.Open(path) //nolint:gosec // the runtime named it
	if errors.Is(err, os.ErrNotExist) {
		if !o.Follow {
			return nil
		}
		return follow(ctx, path, nil, o, w)
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	at, err := start(path, f, o, w)
	if err != nil {
		_ = f.Close() // the reason is err
		return err
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		_ = f.Close() // the reason is err
		return fmt.Errorf("seek in log: %w", err)
	}
	if !o.Follow {
		defer func() { _ = f.Close() }() // read only
		return drain(&lines{r: bufio.NewReaderSize(f, block)}, w, true)
	}
	return follow(ctx, path, f, o, w)
}

// start writes what earlier, rotated files have to say, and returns where to begin in the current one.
func start(path string, f *os.File, o Options, w *writer) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at log: %w", err)
	}
	older, err := rotated(path)
	if err != nil {
		return 0, err
	}
	if o.Tail != nil {
		n := int(min(max(*o.Tail, 0), 1<<31))
		at, have, err := tailOf(f, st.Size(), n)
		if err != nil || have >= n || len(older) == 0 {
			return at, err
		}
		return 0, tailOlder(older, n-have, w)
	}
	for _, p := range older {
		if i, err := os.Stat(p); err == nil && i.ModTime().Before(o.Since) {
			continue // its last entry is older
		}
		if err := whole(p, w); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// tailOf is tailOffset, with how many entries follow.
func tailOf(f io.ReaderAt, size int64, n int) (at int64, have int, err error) {
	at, err = tailOffset(f, size, n)
	if err != nil || at > 0 || n == 0 {
		return at, n, err
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), block)
	for have < n {
		switch _, err := r.ReadSlice('\n'); {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return 0, have, nil
		case err != nil:
			return 0, have, fmt.Errorf("read log: %w", err)
		default:
			have++
		}
	}
	return 0, have, nil
}

// tailOlder writes the last n entries of the rotated files.
func tailOlder(older []string, n int, w *writer) error {
	var keep [][]byte
	for _, p := range slices.Backward(older) {
		var here [][]byte
		err := each(p, func(b []byte) error {
			here = append(here, slices.Clone(b))
			if len(here) > n {
				here = here[1:]
			}
			return nil
		})
		if err != nil {
			return err
		}
		keep = append(here, keep...)
		if len(keep) >= n {
			keep = keep[len(keep)-n:]
			break
		}
	}
	for _, b := range keep {
		if l, err := Parse(b); err == nil {
			if err := w.entry(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// rotated lists a log's earlier files, oldest first: path.20060102-150405, which may be compressed.
func rotated(path string) ([]string, error) {
	all, err := filepath.Glob(strings.NewReplacer("*", "\\*", "?", "\\?", "[", "\\[").Replace(path) + ".*")
	if err != nil {
		return nil, fmt.Errorf("look for rotated logs: %w", err)
	}
	all = slices.DeleteFunc(all, func(p string) bool { return strings.HasSuffix(p, ".tmp") })
	slices.SortFunc(all, func(a, b string) int {
		return strings.Compare(strings.TrimSuffix(a, ".gz"), strings.TrimSuffix(b, ".gz"))
	})
	if numbered(path, all) {
		slices.Reverse(all) // path.1 is the newest
	}
	return all, nil
}

// numbered reports whether rotated files are counted (path.1, path.2) and not dated.
func numbered(path string, all []string) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(p string) bool {
		s := strings.TrimSuffix(strings.TrimPrefix(p, path+"."), ".gz")
		return len(s) > 4 || strings.Trim(s, "0123456789") != ""
	})
}

func whole(path string, w *writer) error {
	return each(path, func(b []byte) error {
		l, err := Parse(b)
		if err != nil {
			return nil //nolint:nilerr // a damaged entry is skipped
		}
		return w.entry(l)
	})
}

// each calls fn with every entry of a file. A file that is gone has none.
func each(path string, fn func([]byte) error) error {
	f, err := os.Open(path) //nolint:gosec // beside the log that the runtime named
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open rotated log: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		gz, err := gzip.NewReader(f)
		if err != nil {
			return fmt.Errorf("open rotated log %s: %w", path, err)
		}
		r = gz
	}
	ls := lines{r: bufio.NewReaderSize(r, block)}
	for {
		b, err := ls.next()
		if errors.Is(err, io.EOF) {
			if len(ls.rest) > 0 {
				return fn(ls.rest)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("read rotated log %s: %w", path, err)
		}
		if err := fn(b); err != nil {
			return err
		}
	}
}

// maxEntry bounds one entry; what a runtime writes is far shorter.
const maxEntry = 1 << 20

// lines cuts a growing file into entries. A half-written entry stays in rest until more comes.
type lines struct {
	r    *bufio.Reader
	rest []byte
}

func (l *lines) next() ([]byte, error) {
	for {
		b, err := l.r.ReadSlice('\n')
		l.rest = append(l.rest, b...)
		if err == nil {
			out := l.rest
			l.rest = nil
			return out, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(l.rest) > maxEntry {
			out := l.rest
			l.rest = nil
			return out, nil
		}
	}
}

// drain writes all entries that are there. last: an entry without its newline counts too.
func drain(ls *lines, w *writer, last bool) error {
	for {
		b, err := ls.next()
		if errors.Is(err, io.EOF) {
			if !last || len(ls.rest) == 0 {
				return nil
			}
			b, ls.rest = ls.rest, nil
			err = nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if l, perr := Parse(b); perr == nil {
			if err := w.entry(l); err != nil {
				return err
			}
		}
	}
}
