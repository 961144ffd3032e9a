// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestTree(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	block := make([]byte, 1<<20)
	for _, p := range []string{filepath.Join(dir, "a"), outside} {
		if err := os.WriteFile(p, block, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "d", "same")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "d", "link")); err != nil {
		t.Fatal(err)
	}
	got, err := Tree(t.Context(), dir)
	if err != nil || got.Bytes < 1<<20 || got.Bytes > 1<<20+64<<10 || got.Inodes != 4 {
		t.Errorf("Tree: got %+v, %v; want 1 MiB and a little, 4 inodes: hard links once, symbolic links not followed", got, err)
	}
	if got, err := Tree(t.Context(), filepath.Join(dir, "none")); err != nil || got != (Disk{}) {
		t.Errorf("Tree of nothing: got %+v, %v", got, err)
	}
}

// TestTreeTooDeep: a pod cannot hide what it writes below more directories than can be walked.
func TestTreeTooDeep(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY, 0)
		_ = unix.Close(fd)
		if fd = next; err != nil {
			t.Fatal(err)
		}
	}
	_ = unix.Close(fd)
	if got, err := Tree(t.Context(), dir); err != nil || got.Bytes < 1<<50 {
		t.Errorf("Tree: got %+v, %v; want more than any limit", got, err)
	}
}

func TestMeterMeasuresRarely(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := NewMeter()
		measure := func() int64 {
			t.Helper()
			d, err := m.Measure(t.Context(), dir, false)
			if err != nil {
				t.Fatal(err)
			}
			return d.Inodes
		}
		before := measure()
		if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := measure(); got != before {
			t.Errorf("after 5 s: %d inodes, want the last measure, %d", got, before)
		}
		time.Sleep(5 * time.Second)
		if got := measure(); got != before+1 {
			t.Errorf("after 10 s: %d inodes, want a new measure, %d", got, before+1)
		}
		m.known[dir].took = 3 * time.Second // a walk that takes long is done rarely
		time.Sleep(4 * time.Minute)
		if err := os.Remove(filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if got := measure(); got != before+1 {
			t.Errorf("4 minutes after a walk of 3 s: %d inodes, want the last measure, %d", got, before+1)
		}
		m.Keep(func(string) bool { return false })
		if got := measure(); got != before {
			t.Errorf("after it was forgotten: %d inodes, want %d", got, before)
		}
	})
}
