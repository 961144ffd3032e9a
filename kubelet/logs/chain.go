// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"

	"keelson/lib/logrotate"
)

// chain goes through a log's files from an old one to the one that is written to, while the log may be rotated. It keeps one file open,
// so a slow reader holds back the space of one file at most.
//
// Names of files that were moved aside only grow. So a file that was at the log's own path when the newest name was last gets, when
// it is rotated, the first name that is greater than last.
type chain struct {
	path string
	// last is the greatest name that is not newer than cur; with aside it is cur's own.
	last  string
	aside bool
	cur   *os.File // nil: before the first file
	ls    *lines
}

// segment is a file of the chain that was opened.
type segment struct {
	f      *os.File
	name   string // of a file moved aside: its own; else the newest one's
	aside  bool
	packed bool
}

// tries bounds how often a look at files is repeated because the log was rotated meanwhile.
const tries = 100

// newer returns the files moved aside whose names are greater than name.
func newer(path, name string) ([]logrotate.File, error) {
	all, err := logrotate.List(path)
	for i := range all {
		if all[i].Name > name {
			return all[i:], err
		}
	}
	return nil, err
}

// peek opens the file after the present one; nil when the present one is the newest.
func (c *chain) peek() (*segment, error) {
	for range tries {
		after, err := newer(c.path, c.last)
		if err != nil {
			return nil, err
		}
		if c.cur != nil && !c.aside && len(after) > 0 && is(c.cur, after[0]) {
			c.last, c.aside = after[0].Name, true
			after = after[1:]
		}
		if len(after) > 0 {
			f, err := openLog(after[0].Path())
			if errors.Is(err, os.ErrNotExist) {
				continue // it was compressed, or it was the oldest
			}
			if err != nil {
				return nil, fmt.Errorf("open rotated log: %w", err)
			}
			return &segment{f: f, name: after[0].Name, aside: true, packed: after[0].Compressed}, nil
		}
		seg, again, err := c.peekNewest()
		if err != nil || !again {
			return seg, err
		}
	}
	return nil, fmt.Errorf("read log %s: it is rotated faster than it can be opened", c.path)
}

// peekNewest opens the log itself; nil when that is the present file, or none is there. again: the log was rotated meanwhile.
func (c *chain) peekNewest() (seg *segment, again bool, err error) {
	f, err := openLog(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open log: %w", err)
	}
	after, err := newer(c.path, c.last)
	if err != nil || len(after) > 0 {
		_ = f.Close() // read only
		return nil, err == nil, err
	}
	if c.cur != nil && !c.aside && same(c.cur, f) {
		_ = f.Close() // read only
		return nil, false, c.rewind()
	}
	return &segment{f: f, name: c.last}, false, nil
}

// rewind goes back to the beginning of a file that was truncated in place.
func (c *chain) rewind() error {
	st, err := c.cur.Stat()
	if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	pos, err := c.cur.Seek(0, io.SeekCurrent)
	if err != nil || st.Size() >= pos {
		return err
	}
	if _, err := c.cur.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("seek in log: %w", err)
	}
	c.ls = &lines{r: bufio.NewReaderSize(c.cur, block)}
	return nil
}

// use goes over to a segment, at its beginning.
func (c *chain) use(s *segment) {
	c.close()
	c.cur, c.last, c.aside = s.f, s.name, s.aside
	var r io.Reader = s.f
	if s.packed {
		r = unpacked{s.f}.reader()
	}
	c.ls = &lines{r: bufio.NewReaderSize(r, block)}
}

func (c *chain) close() {
	if c.cur != nil {
		_ = c.cur.Close() // read only
		c.cur = nil
	}
}

// unpacked reads a compressed file. One that a power cut damaged ends where it is damaged: the files after it can still be read.
type unpacked struct{ f *os.File }

func (u unpacked) reader() io.Reader {
	gz, err := gzip.NewReader(u.f)
	if err != nil {
		return eof{}
	}
	return untilDamage{gz}
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

type untilDamage struct{ r io.Reader }

func (u untilDamage) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// is reports whether f, which was opened at the log's own path, is the file that was moved aside: by its identity, or when it was
// compressed since, by the time of its last entry.
func is(f *os.File, aside logrotate.File) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(aside.Path())
	if errors.Is(err, os.ErrNotExist) && !aside.Compressed {
		aside.Compressed = true
		b, err = os.Stat(aside.Path())
	}
	if err != nil {
		return false
	}
	if aside.Compressed {
		return a.ModTime().Equal(b.ModTime())
	}
	return os.SameFile(a, b)
}

func same(f, g *os.File) bool {
	a, errA := f.Stat()
	b, errB := g.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// newest opens the log itself, knowing which files are older; false when no log is there.
func (c *chain) newest() (bool, error) {
	for range tries {
		all, err := logrotate.List(c.path)
		if err != nil {
			return false, err
		}
		if n := len(all); n > 0 {
			c.last = all[n-1].Name
		}
		seg, again, err := c.peekNewest()
		if again {
			continue
		}
		if err != nil || seg == nil {
			return false, err
		}
		c.use(seg)
		return true, nil
	}
	return false, fmt.Errorf("read log %s: it is rotated faster than it can be opened", c.path)
}
