// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/run"
)

// ReserveFile is a file of the data directory. It takes room on the disk for a start that finds the disk full: opening
// the store needs some, and so do the pid file and the log. An empty file says that a start has used it.
const ReserveFile = "reserve"

// Reserve is the reserve of a data directory: ReserveFile, and empty files.
type Reserve struct{ dir Dir }

// Reserve returns the directory's reserve, whether it is there or not.
func (d Dir) Reserve() Reserve { return Reserve{d} }

// reserveFiles is a directory of empty files, which are part of the reserve: a file system may have room and no inode.
const reserveFiles = "reserve-files"

// The reserve is a sixteenth of the disk, at most reserveMost and inodesMost. It is used when less than reserveUse or
// inodesUse is free.
const (
	reserveMost = 32 << 20
	reservePart = 16
	reserveUse  = 8 << 20
	inodesMost  = 64
	inodesUse   = 16
)

// room is what this process may still write to the file system of a directory.
type room struct {
	bytes int64
	// inodes are those of new files; total is the number that the file system has, 0 if it has no such limit.
	inodes, total uint64
}

func roomIn(dir string) (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return room{}, err
	}
	blocks := st.Bavail
	if os.Geteuid() == 0 {
		blocks = st.Bfree
	}
	return room{
		bytes:  int64(blocks) * st.Bsize, // no file system is that large
		inodes: st.Ffree,
		total:  st.Files,
	}, nil
}

// has reports whether there is room for so much.
func (r room) has(bytes int64, inodes uint64) bool {
	return r.bytes >= bytes && (r.total == 0 || r.inodes >= inodes)
}

// use frees the reserve if the disk is full. The caller holds the directory's lock or its node's.
func (r Reserve) use() error {
	path := r.dir.Sub(ReserveFile)
	st, err := os.Stat(path)
	if err != nil || st.Size() == 0 {
		return nil //nolint:nilerr // there is nothing to use
	}
	free, err := roomIn(string(r.dir))
	if err != nil || free.has(reserveUse, inodesUse) {
		return err
	}
	return errors.Join(os.Truncate(path, 0), os.RemoveAll(r.dir.Sub(reserveFiles)))
}

// spareInode frees an inode of the reserve for the pid file, with which the lock begins, and reports whether it has.
func (r Reserve) spareInode() bool {
	files, err := os.ReadDir(r.dir.Sub(reserveFiles))
	return err == nil && len(files) > 0 && os.Remove(filepath.Join(r.dir.Sub(reserveFiles), files[0].Name())) == nil
}

// Fill makes the reserve if the disk has room for it. used reports that an earlier start has used it and the
// room is not back.
func (r Reserve) Fill() (used bool, err error) {
	path := r.dir.Sub(ReserveFile)
	st, err := os.Stat(path)
	if err == nil && st.Size() > 0 && Exists(r.dir.Sub(reserveFiles)) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	used = err == nil && st.Size() == 0
	free, err := roomIn(string(r.dir))
	if err != nil {
		return used, err
	}
	size := min(int64(reserveMost), DiskSize(string(r.dir))/reservePart)
	inodes := min(inodesMost, free.total/reservePart)
	if !free.has(2*size+reserveUse, 2*inodes+inodesUse) {
		return used, nil
	}
	if err := errors.Join(r.allocateInodes(int(inodes)), allocateFile(path, size)); err != nil { // at most inodesMost
		err = errors.Join(err, os.RemoveAll(r.dir.Sub(reserveFiles)))
		if used {
			err = errors.Join(err, os.Truncate(path, 0))
		} else {
			err = errors.Join(err, os.Remove(path))
		}
		return used, fmt.Errorf("reserve disk space: %w", err)
	}
	return false, nil
}

// allocateInodes makes that many empty files.
func (r Reserve) allocateInodes(n int) error {
	dir := r.dir.Sub(reserveFiles)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := range n {
		file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(i)), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// allocateFile makes a file of that many bytes, which has its blocks.
func allocateFile(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing reads it
	err = unix.Fallocate(int(file.Fd()), 0, 0, size)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	block := make([]byte, 1<<20)
	for left := size; left > 0; left -= int64(len(block)) {
		if _, werr := file.Write(block[:min(left, int64(len(block)))]); werr != nil {
			return werr
		}
	}
	return nil
}

// Sparing is a store that can refuse what takes more room.
type Sparing interface{ Spare(on bool) }

const reserveLook = 30 * time.Second

// KeepServer returns the part that refills the reserve of a server when the disk has room again. Until then st refuses
// new and larger objects, because what the reserve gave would be gone at once; the next start finds no other.
func (r Reserve) KeepServer(st Sparing, log *slog.Logger) run.Part {
	return run.Part{Name: "disk reserve", Run: func(ctx context.Context, ready func()) error {
		log.Warn("the disk is full: this start uses its reserve, and new objects are refused until there is room",
			"dir", r.dir)
		st.Spare(true)
		ready()
		if r.refill(ctx, log) {
			st.Spare(false)
			<-ctx.Done()
		}
		return nil
	}}
}

// Node makes the reserve of a process without a store. It returns the part that refills it, if this start has
// used it; none: there is nothing to do.
func (r Reserve) Node(log *slog.Logger) []run.Part {
	used, err := r.Fill()
	if err != nil {
		log.Warn("there is no reserve for a start with a full disk", "err", err)
	}
	if !used {
		return nil
	}
	return []run.Part{r.KeepNode(log)}
}

// KeepNode is KeepServer for a node in a process of its own, which has no store.
func (r Reserve) KeepNode(log *slog.Logger) run.Part {
	return run.Part{Name: "disk reserve", Run: func(ctx context.Context, ready func()) error {
		log.Warn("the disk is full: this start uses its reserve, delete files: the next start has none", "dir", r.dir)
		ready()
		if r.refill(ctx, log) {
			<-ctx.Done()
		}
		return nil
	}}
}

// refill waits until the disk has room again, and reports whether it refilled the reserve before ctx ended.
func (r Reserve) refill(ctx context.Context, log *slog.Logger) bool {
	waitForRoom(ctx, reserveLook, r.Fill, log)
	if ctx.Err() != nil {
		return false
	}
	log.Info("the disk has room again, the reserve is refilled", "dir", r.dir)
	return true
}

// waitForRoom returns when fill has filled the reserve, or ctx ends.
func waitForRoom(ctx context.Context, every time.Duration, fill func() (bool, error), log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		used, err := fill()
		if err != nil {
			log.Warn("cannot refill the reserve of disk space", "err", err)
		}
		if !used {
			return
		}
	}
}

// DiskSize is the size of the file system of dir, in bytes; 0: unknown.
func DiskSize(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Blocks) * st.Bsize // no file system is that large
}
