// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"keelson/cluster/datadir"
)

// denied is what the kernel answers about a file in another user's directory.
func denied(path string) (fs.FileInfo, error) {
	return nil, &fs.PathError{Op: "stat", Path: path, Err: syscall.EACCES}
}

// TestStoppableDenied: a directory that may not be read is not called one without a cluster.
func TestStoppableDenied(t *testing.T) {
	for _, purge := range []bool{false, true} {
		err := stoppable("/d", purge, denied)
		if !errors.Is(err, fs.ErrPermission) ||
			!strings.Contains(err.Error(), "/d/keelson.pid cannot be opened: permission denied; run this command as") {
			t.Errorf("purge %v: got %v, want that it may not be read, and what to do", purge, err)
		}
	}
	dir := datadir.Dir(t.TempDir())
	if err := stoppable(dir, true, os.Stat); err == nil ||
		!strings.Contains(err.Error(), "is not a cluster's data directory") {
		t.Errorf("an empty directory: got %v", err)
	}
	if err := os.WriteFile(dir.NodePidFile(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stoppable(dir, false, os.Stat); err != nil {
		t.Errorf("a node's directory: got %v, want no error", err)
	}
}
