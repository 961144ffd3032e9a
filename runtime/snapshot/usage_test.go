// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"testing"

	"golang.org/x/sys/unix"

	"keelson/runtime/image"
)

// TestUsageOfADeepTree: what a container writes below more directories than a path can name is not hidden from its
// limits.
func TestUsageOfADeepTree(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2100 {
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
	var u image.Usage
	if err := diskUsage(dir, &u); err != nil || u.Bytes < 1<<50 {
		t.Errorf("usage: %+v, %v; want more than any limit", u, err)
	}
}
