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

// Disk is the usage of a directory tree.
type Disk struct{ Bytes, Inodes int64 }

// Filesystem has capacity and usage of a file system.
type Filesystem struct {
	Capacity, Available, Used int64
	Inodes, InodesFree        int64
	Device                    unix.Fsid
}

// Statfs returns the statistics of a path's file system.
func Statfs(path string) (Filesystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Filesystem{}, fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	return Filesystem{
		Capacity:   int64(s.Blocks) * s.Bsize,
		Available:  int64(s.Bavail) * s.Bsize,
		Used:       int64(s.Blocks-s.Bfree) * s.Bsize, // sizes of file systems
		Inodes:     int64(s.Files),
		InodesFree: int64(s.Ffree),
		Device:     s.Fsid, // counts of file systems
	}, nil
}

// Meter measures directory trees that pods write to. It caches the results, so that a pod with many files cannot cause
// load: a tree is walked at most once per minAge, and so rarely that walks take at most 1 % of the time.
type Meter struct {
	mu       sync.Mutex
	readings map[string]*reading // by path
}

// reading is the last result for one tree. Its lock is held during a walk.
type reading struct {
	mu   sync.Mutex
	at   time.Time
	took time.Duration
	disk Disk
}

const (
	minAge  = 10 * time.Second
	mostAge = 10 * time.Minute
	share   = 100
)

// NewMeter returns a meter without results.
func NewMeter() *Meter { return &Meter{readings: map[string]*reading{}} }

// Measure returns the usage of the tree at dir, perhaps from the cache. For a tmpfs (memory) it calls statfs instead of
// a walk.
func (m *Meter) Measure(ctx context.Context, dir string, memory bool) (Disk, error) {
	if memory && mounted(dir) {
		fs, err := Statfs(dir)
		return Disk{Bytes: fs.Used, Inodes: fs.Inodes - fs.InodesFree}, err
	}
	m.mu.Lock()
	r := m.readings[dir]
	if r == nil {
		r = &reading{}
		m.readings[dir] = r
	}
	m.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := min(max(minAge, share*r.took), mostAge); !r.at.IsZero() && time.Since(r.at) < age-minAge/10 {
		return r.disk, nil
	}
	begin := time.Now()
	u, err := inroot.Measure(ctx, dir)
	if err != nil {
		return Disk{}, err
	}
	r.at = time.Now()
	r.took = time.Since(begin)
	r.disk = Disk(u)
	return r.disk, nil
}

// mounted reports whether dir is a file system of its own.
func mounted(dir string) bool {
	var a, b unix.Stat_t
	return unix.Lstat(dir, &a) == nil && unix.Lstat(filepath.Dir(dir), &b) == nil && a.Dev != b.Dev
}

// Retain drops the results of all trees for which keep returns false.
func (m *Meter) Retain(keep func(dir string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dir := range m.readings {
		if !keep(dir) {
			delete(m.readings, dir)
		}
	}
}
