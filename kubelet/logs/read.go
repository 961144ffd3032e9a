// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"keelson/lib/logrotate"
)

// Options selects the part of a log to write, as PodLogOptions.
type Options struct {
	Since      time.Time // zero: from the beginning
	Tail       *int64    // last lines; nil: all
	LimitBytes *int64
	Timestamps bool
	Follow     bool
	Stdout     bool
	Stderr     bool
	// Alive is called when a followed log has no new entries. If it returns false, Read writes the rest and returns.
	Alive func(ctx context.Context) bool
}

// errLimit: LimitBytes are written.
var errLimit = errors.New("limit reached")

// writer writes entries in the client's format.
type writer struct {
	w      io.Writer
	o      Options
	left   int64           // of LimitBytes; negative: no limit
	tail   int64           // entries that may follow; negative: no limit
	inside map[Stream]bool // a partial line was written last: no timestamp before its rest
}

func newWriter(w io.Writer, options Options) *writer {
	out := &writer{
		w:      w,
		o:      options,
		left:   -1,
		tail:   -1,
		inside: map[Stream]bool{},
	}
	if options.Tail != nil && !options.Follow { // entries that are written during the read do not belong to the tail
		out.tail = max(*options.Tail, 0)
	}
	if options.LimitBytes != nil {
		out.left = max(*options.LimitBytes, 0)
	}
	return out
}

func (w *writer) wants(s Stream) bool { return s == Stdout && w.o.Stdout || s == Stderr && w.o.Stderr }

// entry writes one parsed entry.
func (w *writer) entry(line Line) error {
	if w.tail == 0 {
		return errLimit
	}
	if w.tail > 0 {
		w.tail--
	}
	if !w.wants(line.Stream) || line.Time.Before(w.o.Since) {
		return nil
	}
	text := line.Text
	if w.o.Timestamps && !w.inside[line.Stream] {
		text = append([]byte(line.Time.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")+" "), text...)
	}
	w.inside[line.Stream] = line.Partial
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

// Read writes the log at path to out. A missing log is empty; if it is followed, it may appear later.
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
	c := &reader{path: path}
	defer c.close()
	if err := c.start(o); err != nil {
		return err
	}
	if o.Follow {
		return follow(ctx, c, o, w)
	}
	return c.rest(ctx, w)
}

// start opens the file with the first selected entry, and seeks to it. Without a log it opens nothing.
func (c *reader) start(o Options) error {
	if o.Tail != nil {
		return c.startTail(int(min(max(*o.Tail, 0), 1<<31)))
	}
	all, err := logrotate.List(c.path)
	if err != nil {
		return err
	}
	for _, f := range all {
		if i, err := os.Stat(f.Path()); err != nil || !i.ModTime().Before(o.Since) {
			break
		}
		c.last = f.Name // its last entry is older
	}
	return c.advance()
}

// startTail seeks to the last n entries of all files together.
func (c *reader) startTail(n int) error {
	found, err := c.newest()
	if err != nil || !found {
		return err
	}
	st, err := c.cur.Stat()
	if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	at, have, err := tailOf(c.cur, st.Size(), n)
	if err != nil {
		return err
	}
	if _, err := c.cur.Seek(at, io.SeekStart); err != nil {
		return fmt.Errorf("seek in log: %w", err)
	}
	older, err := logrotate.List(c.path)
	if err != nil {
		return err
	}
	older = slices.DeleteFunc(older, func(f logrotate.File) bool { return f.Name > c.last })
	for i, file := range slices.Backward(older) {
		if have >= n {
			break
		}
		here, err := count(file)
		if err != nil {
			return err
		}
		have += here
		if have < n && i > 0 {
			continue
		}
		return c.startAt(file, have-n)
	}
	return nil
}

// startAt opens a rotated file, and skips its first entries.
func (c *reader) startAt(file logrotate.File, skip int) error {
	old, err := openLog(file.Path())
	if errors.Is(err, os.ErrNotExist) && !file.Compressed {
		file.Compressed = true
		old, err = openLog(file.Path())
	}
	if errors.Is(err, os.ErrNotExist) { // the oldest file was removed concurrently
		c.close()
		c.last = file.Name
		c.aside = false
		return c.advance()
	}
	if err != nil {
		return fmt.Errorf("open rotated log: %w", err)
	}
	c.switchTo(&segment{
		f:      old,
		name:   file.Name,
		aside:  true,
		packed: file.Compressed,
	})
	for range skip {
		if _, err := c.ls.next(); err != nil {
			return nil //nolint:nilerr // a damaged file ends here
		}
	}
	return nil
}

// advance switches to the next file, if there is one.
func (c *reader) advance() error {
	seg, err := c.openNext()
	if err == nil && seg != nil {
		c.switchTo(seg)
	}
	return err
}

// rest writes the existing entries from the current position. It does not wait for new ones.
func (c *reader) rest(ctx context.Context, w *writer) error {
	for c.cur != nil && ctx.Err() == nil {
		if !c.aside {
			st, err := c.cur.Stat()
			if err != nil {
				return fmt.Errorf("look at log: %w", err)
			}
			at, err := c.cur.Seek(0, io.SeekCurrent)
			if err != nil {
				return fmt.Errorf("seek in log: %w", err)
			}
			c.ls = &lines{r: bufio.NewReaderSize(io.LimitReader(c.cur, max(st.Size()-at, 0)), block)}
			return drain(c.ls, w, true)
		}
		if err := drain(c.ls, w, true); err != nil {
			return err
		}
		seg, err := c.openNext()
		if err != nil || seg == nil {
			return err
		}
		c.switchTo(seg)
	}
	return nil
}

// tailOf returns tailOffset, and the number of entries after it.
func tailOf(f io.ReaderAt, size int64, n int) (at int64, have int, err error) {
	at, err = tailOffset(f, size, n)
	if err != nil || at > 0 || n == 0 {
		return at, n, err
	}
	have, err = entries(io.NewSectionReader(f, 0, size), n)
	return 0, have, err
}

// entries counts complete entries, at most to most.
func entries(in io.Reader, most int) (int, error) {
	r := bufio.NewReaderSize(in, block)
	for n := 0; ; {
		switch _, err := r.ReadSlice('\n'); {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, fmt.Errorf("read log: %w", err)
		default:
			if n++; n >= most {
				return n, nil
			}
		}
	}
}

// count returns the number of entries of a rotated file; 0 if it was removed.
func count(file logrotate.File) (int, error) {
	in, err := openLog(file.Path())
	if errors.Is(err, os.ErrNotExist) && !file.Compressed {
		file.Compressed = true
		in, err = openLog(file.Path())
	}
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open rotated log: %w", err)
	}
	defer func() { _ = in.Close() }() // read only
	if file.Compressed {
		return entries(decompress{in}.reader(), math.MaxInt)
	}
	return entries(in, math.MaxInt)
}

// maxEntry is the limit for one entry; runtimes write much shorter ones.
const maxEntry = 1 << 20

// lines splits a growing file into entries. An incomplete entry stays in rest.
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

// drain writes all existing entries. last: also an entry without its newline.
func drain(ls *lines, w *writer, last bool) error {
	for {
		b, err := ls.next()
		if errors.Is(err, io.EOF) {
			if !last || len(ls.rest) == 0 {
				return nil
			}
			b = ls.rest
			ls.rest = nil
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
