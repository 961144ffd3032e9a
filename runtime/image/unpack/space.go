// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// ErrNoSpace means that an image would use the reserved disk space.
var ErrNoSpace = errors.New("not enough free disk space for the image")

// Space checks the free space of the store's file system. The cluster's database usually is on the same file system and
// fails when that is full; the reserve keeps space for it.
type Space struct {
	dir     string
	reserve int64
	collect func()
}

// NewSpace returns the space of the file system of dir. reserve is in bytes, 0 means reserveOf the file system; collect
// makes room, and may be nil.
func NewSpace(dir string, reserve int64, collect func()) *Space {
	return &Space{dir: dir, reserve: reserve, collect: collect}
}

// reserveOf returns the reserve for a file system size: a twentieth, between 128 MiB and 4 GiB, but at most a quarter.
func reserveOf(total int64) int64 {
	return min(max(min(total/20, 4<<30), 128<<20), total/4)
}

// Check fails when less than the reserve would be free after need more bytes, or few inodes are free, although what
// is not needed was collected. A nil space never fails.
func (s *Space) Check(need int64) error {
	if s == nil {
		return nil
	}
	err := s.look(need)
	if errors.Is(err, ErrNoSpace) && s.collect != nil {
		s.collect()
		err = s.look(need)
	}
	return err
}

func (s *Space) look(need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return fmt.Errorf("look for free space: statfs %s: %w", s.dir, err)
	}
	free := int64(st.Bavail) * st.Bsize
	total := int64(st.Blocks) * st.Bsize // no file system is that large
	reserve := s.reserve
	if reserve == 0 {
		reserve = reserveOf(total)
	}
	if free-need < reserve {
		return fmt.Errorf("%w: the file system of %s has %d MiB free, of which %d MiB are reserved for the cluster's "+
			"own data: remove images or other files, or give it more room",
			ErrNoSpace, s.dir, free>>20, reserve>>20)
	}
	if st.Files > 0 && st.Ffree < min(st.Files/20, 10_000) {
		return fmt.Errorf("%w: the file system of %s has %d inodes left of %d: remove images or other files",
			ErrNoSpace, s.dir, st.Ffree, st.Files)
	}
	return nil
}

// Writer returns a writer to w that fails when there is no more space.
func (s *Space) Writer(w io.Writer) io.Writer { return &spaceWriter{w: w, space: s, next: 0} }

type spaceWriter struct {
	w     io.Writer
	space *Space
	next  int64 // bytes until the next check
}

func (s *spaceWriter) Write(p []byte) (int, error) {
	if s.next -= int64(len(p)); s.next <= 0 {
		if err := s.space.Check(stride); err != nil {
			return 0, err
		}
		s.next = stride
	}
	return s.w.Write(p)
}
