// SPDX-License-Identifier: Apache-2.0

// Package disktest makes small disks, and fills them. Tests of what runs on a full disk import it.
package disktest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Small mounts a file system of that size.
func Small(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: not root, cannot mount a small tmpfs")
	}
	disk := t.TempDir()
	if err := unix.Mount("keelson-test", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED: cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return disk
}

// Fill writes a file until the disk is full.
func Fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, block := range []int{1 << 20, 4096} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, block))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}
