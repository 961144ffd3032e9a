// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMeasure(t *testing.T) {
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
	got, err := Measure(t.Context(), dir)
	if err != nil || got.Bytes < 1<<20 || got.Bytes > 1<<20+64<<10 || got.Inodes != 4 {
		t.Errorf("Measure: got %+v, %v; want 1 MiB and a little, 4 inodes: hard links once, symbolic links not "+
			"followed", got, err)
	}
	if got, err := Measure(t.Context(), filepath.Join(dir, "none")); err != nil || got != (Usage{}) {
		t.Errorf("Measure of nothing: got %+v, %v", got, err)
	}
}

// TestMeasureTooDeep: a pod cannot hide what it writes below more directories than can be walked.
func TestMeasureTooDeep(t *testing.T) {
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
	if got, err := Measure(t.Context(), dir); err != nil || got.Bytes < 1<<50 {
		t.Errorf("Measure: got %+v, %v; want more than any limit", got, err)
	}
}
