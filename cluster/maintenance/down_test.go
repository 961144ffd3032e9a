// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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

// noRoles has nothing to remove.
func noRoles(context.Context, datadir.Dir) []error { return nil }

// TestDownOfRestored: what was restored and never started can be deleted, and only when that is asked for. A directory
// that only looks like it is left alone.
func TestDownOfRestored(t *testing.T) {
	file := backupFile(t, 3)
	quiet := func(string, time.Duration) {}
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	if _, err := Restore(t.Context(), dir, file); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir, noRoles, false, quiet); err == nil ||
		!strings.Contains(err.Error(), "restored, and never started") {
		t.Errorf("down: %v; want that it never started", err)
	}
	if got := left(t, dir); got != "data" {
		t.Errorf("down left %q", got)
	}
	for _, change := range []struct{ make, drop string }{{make: "letters"}, {drop: "store/clean-stop"}} {
		other := datadir.Dir(filepath.Join(t.TempDir(), "data"))
		if _, err := Restore(t.Context(), other, file); err != nil {
			t.Fatal(err)
		}
		if change.make != "" {
			if err := os.WriteFile(other.Sub(change.make), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if change.drop != "" {
			if err := os.Remove(other.Sub(change.drop)); err != nil {
				t.Fatal(err)
			}
		}
		if err := Down(t.Context(), other, noRoles, true, quiet); err == nil ||
			!strings.Contains(err.Error(), "is not a cluster's data directory") || !datadir.Exists(other.Sub("store")) {
			t.Errorf("%+v: %v; want it left as it is", change, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("what is in the kernel is taken away by root only")
	}
	if err := Down(t.Context(), dir, noRoles, true, quiet); err != nil {
		t.Fatal(err)
	}
	if got := left(t, dir); got != "" {
		t.Errorf("down --purge left %q", got)
	}
}
