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

// reader reads a log's files from an old rotated one to the current one, while the log may be rotated. It keeps one
// file open, so a slow client keeps the disk space of at most one deleted file.
//
// The names of rotated files increase. So if last was the newest name when the current file was opened, the current
// file gets, when it is rotated, the first name greater than last.
type reader struct {
	path string
	// last is the greatest name of a rotated file that is not newer than cur. If aside is set, it is cur's own name.
	last  string
	aside bool
	cur   *os.File // nil: before the first file
	ls    *lines
}

// segment is an open file of the log.
type segment struct {
	f      *os.File
	name   string // its own name if it is rotated, else the name of the newest rotated file
	aside  bool
	packed bool
}

// maxTries bounds the retries after a concurrent rotation.
const maxTries = 100

// newer returns the rotated files whose names are greater than name.
func newer(path, name string) ([]logrotate.File, error) {
	all, err := logrotate.List(path)
	for i := range all {
		if all[i].Name > name {
			return all[i:], err
		}
	}
	return nil, err
}

// openNext opens the file after the open one; nil: the open one is the newest.
func (c *reader) openNext() (*segment, error) {
	for range maxTries {
		after, err := newer(c.path, c.last)
		if err != nil {
			return nil, err
		}
		if c.cur != nil && !c.aside && len(after) > 0 && isMoved(c.cur, after[0]) {
			c.last = after[0].Name
			c.aside = true
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
			return &segment{
				f:      f,
				name:   after[0].Name,
				aside:  true,
				packed: after[0].Compressed,
			}, nil
		}
		seg, again, err := c.openNewest()
		if err != nil || !again {
			return seg, err
		}
	}
	return nil, fmt.Errorf("read log %s: it is rotated faster than it can be opened", c.path)
}

// openNewest opens the log itself; nil: it is open already, or there is none. again: the log was rotated concurrently.
func (c *reader) openNewest() (seg *segment, again bool, err error) {
	file, err := openLog(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open log: %w", err)
	}
	after, err := newer(c.path, c.last)
	if err != nil || len(after) > 0 {
		_ = file.Close() // read only
		return nil, err == nil, err
	}
	if c.cur != nil && !c.aside && same(c.cur, file) {
		_ = file.Close() // read only
		return nil, false, c.rewind()
	}
	return &segment{f: file, name: c.last}, false, nil
}

// rewind starts again at the beginning of a file that was truncated in place.
func (c *reader) rewind() error {
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

// switchTo continues at the beginning of a segment.
func (c *reader) switchTo(s *segment) {
	c.close()
	c.cur = s.f
	c.last = s.name
	c.aside = s.aside
	var r io.Reader = s.f
	if s.packed {
		r = decompress{s.f}.reader()
	}
	c.ls = &lines{r: bufio.NewReaderSize(r, block)}
}

func (c *reader) close() {
	if c.cur != nil {
		_ = c.cur.Close() // read only
		c.cur = nil
	}
}

// decompress reads a compressed file. A file that was damaged by a power loss ends at the damage, so that the later
// files can still be read.
type decompress struct{ f *os.File }

func (u decompress) reader() io.Reader {
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

// isMoved reports whether f, which was opened at the log's own path, is a rotated file: by its identity, or if that is
// compressed, by the time of its last entry.
func isMoved(f *os.File, aside logrotate.File) bool {
	info, err := f.Stat()
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
		return info.ModTime().Equal(b.ModTime())
	}
	return os.SameFile(info, b)
}

func same(f, g *os.File) bool {
	a, errA := f.Stat()
	b, errB := g.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// newest opens the log itself, and sets last; false: there is no log.
func (c *reader) newest() (bool, error) {
	for range maxTries {
		all, err := logrotate.List(c.path)
		if err != nil {
			return false, err
		}
		if n := len(all); n > 0 {
			c.last = all[n-1].Name
		}
		seg, again, err := c.openNewest()
		if again {
			continue
		}
		if err != nil || seg == nil {
			return false, err
		}
		c.switchTo(seg)
		return true, nil
	}
	return false, fmt.Errorf("read log %s: it is rotated faster than it can be opened", c.path)
}
