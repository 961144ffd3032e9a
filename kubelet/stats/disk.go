// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
)

// Disk is what a tree takes of its file system.
type Disk struct{ Bytes, Inodes int64 }

// Filesystem is what a file system has.
type Filesystem struct {
	Capacity, Available, Used int64
	Inodes, InodesFree        int64
	Device                    unix.Fsid
}

// Statfs looks at the file system of a path.
func Statfs(path string) (Filesystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Filesystem{}, fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	return Filesystem{
		Capacity: int64(s.Blocks) * s.Bsize, Available: int64(s.Bavail) * s.Bsize, Used: int64(s.Blocks-s.Bfree) * s.Bsize, //nolint:gosec // sizes of file systems
		Inodes: int64(s.Files), InodesFree: int64(s.Ffree), Device: s.Fsid, //nolint:gosec // counts of file systems
	}, nil
}

// Meter measures trees that pods write to. A walk is done no more often than it is cheap, whatever a pod puts into its volume: at most
// every leastAge, and then so rarely that it takes a hundredth of the time.
type Meter struct {
	mu    sync.Mutex
	known map[string]*reading // by path
}

// reading is the last measure of one tree. Its lock is held while the tree is measured.
type reading struct {
	mu   sync.Mutex
	at   time.Time
	took time.Duration
	disk Disk
}

const (
	leastAge = 10 * time.Second
	mostAge  = 10 * time.Minute
	share    = 100
)

// NewMeter returns a meter that knows nothing.
func NewMeter() *Meter { return &Meter{known: map[string]*reading{}} }

// Measure is what the tree at dir takes, as measured lately. A tree in memory, which is a mount, is asked of its file system.
func (m *Meter) Measure(ctx context.Context, dir string, memory bool) (Disk, error) {
	if memory && mounted(dir) {
		fs, err := Statfs(dir)
		return Disk{Bytes: fs.Used, Inodes: fs.Inodes - fs.InodesFree}, err
	}
	m.mu.Lock()
	r := m.known[dir]
	if r == nil {
		r = &reading{}
		m.known[dir] = r
	}
	m.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := min(max(leastAge, share*r.took), mostAge); !r.at.IsZero() && time.Since(r.at) < age-leastAge/10 {
		return r.disk, nil
	}
	begin := time.Now()
	u, err := inroot.Measure(ctx, dir)
	if err != nil {
		return Disk{}, err
	}
	r.at, r.took, r.disk = time.Now(), time.Since(begin), Disk(u)
	return r.disk, nil
}

// mounted reports whether dir is a file system of its own.
func mounted(dir string) bool {
	var a, b unix.Stat_t
	return unix.Lstat(dir, &a) == nil && unix.Lstat(filepath.Dir(dir), &b) == nil && a.Dev != b.Dev
}

// Keep forgets every tree of which keep says no.
func (m *Meter) Keep(keep func(dir string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dir := range m.known {
		if !keep(dir) {
			delete(m.known, dir)
		}
	}
}
