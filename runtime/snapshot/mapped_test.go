// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"keelson/lib/linux"
	"keelson/runtime/image"
)

const root = 655360 // the namespace's, on the host

// newMapping holds a user namespace for the test's time.
func newMapping(t *testing.T) Mapping {
	t.Helper()
	dir := t.TempDir()
	m := []linux.IDMap{{Outside: root, Length: 65536}}
	if err := linux.HoldUserNamespace(dir, nil, linux.IDMaps{UIDs: m, GIDs: m},
		exec.CommandContext(t.Context(), "cat")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := linux.Release(dir, []linux.Namespace{linux.UserNamespace}); err != nil {
			t.Error(err)
		}
	})
	return Mapping{UserNamespace: filepath.Join(dir, "user"), UID: root, GID: root}
}

// mappedStore is setup's store with a directory that others reach, as /run.
func mappedStore(t *testing.T, dir string) (*Store, *image.Store) {
	t.Helper()
	reach, err := os.MkdirTemp("", "snapshots") //nolint:usetesting // its parent must be searchable
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(reach, 0o711); err != nil {
		t.Fatal(err)
	}
	s, images := setup(t, dir)
	s.mapped = filepath.Join(reach, "mapped")
	t.Cleanup(func() { // before setup's, which removes the snapshots
		if err := s.removeAllForTest(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.Purge(), os.Remove(reach)); err != nil {
			t.Error(err)
		}
	})
	return s, images
}

func (s *Store) removeAllForTest() error {
	ids, err := s.List()
	for _, id := range ids {
		err = errors.Join(err, s.Remove(context.Background(), id))
	}
	return err
}

func ownerOf(t *testing.T, path string) (uid, gid uint32) {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner")
	}
	return st.Uid, st.Gid
}

// as runs a program as another user and group of the machine.
func as(t *testing.T, id uint32, name string, args ...string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	return cmd.Run()
}

// TestPrepareMapped: files belong to the namespace's root, who reaches them; no other user does; the layers stay as
// they are.
func TestPrepareMapped(t *testing.T) {
	needRoot(t)
	store, images := mappedStore(t, t.TempDir())
	img := imported(t, images, []string{"etc/", "", "etc/a", "1"}, []string{"etc/b", "2"})
	fs, err := store.PrepareMapped(t.Context(), "box", img, newMapping(t))
	if err != nil {
		t.Fatal(err)
	}
	again, err := store.PrepareMapped(t.Context(), "box", img, newMapping(t))
	if err != nil || again != fs {
		t.Errorf("prepared again: got %s, %v, want %s", again, err, fs)
	}
	for _, name := range []string{"", "etc", "etc/a", "etc/b"} {
		if u, g := ownerOf(t, filepath.Join(fs, name)); u != root || g != root {
			t.Errorf("/%s belongs to %d:%d, want %d", name, u, g, root)
		}
	}
	if err := as(t, root, "sh", "-c", "echo 3 >>"+fs+"/etc/a && mkdir "+fs+"/new"); err != nil {
		t.Errorf("the namespace's root cannot write: %v", err)
	}
	if err := as(t, root+65536, "cat", fs+"/etc/b"); err == nil {
		t.Error("the root of another namespace can read")
	}
	for _, name := range []string{"etc/a", "new"} {
		if u, _ := ownerOf(t, filepath.Join(store.dir, "box", "upper", name)); u != root {
			t.Errorf("%s was written for user %d, want %d", name, u, root)
		}
	}
	below := filepath.Join(images.LayerDir(img.Layers[0].ChainID), "etc/a")
	if u, _ := ownerOf(t, below); u != 0 {
		t.Errorf("the layer's file belongs to %d now", u)
	}
	if b, err := os.ReadFile(below); err != nil || string(b) != "1" {
		t.Errorf("the layer's file: got %q, %v", b, err)
	}
	if _, err := store.Remount(t.Context(), "box"); err == nil {
		t.Error("a snapshot of a user namespace was mounted without it")
	}
	if err := store.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(store.mapped); err != nil || len(left) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
}

func TestCheckMapping(t *testing.T) {
	needRoot(t)
	store, _ := mappedStore(t, t.TempDir())
	if err := store.CheckMapping(t.Context(), newMapping(t)); err != nil {
		t.Errorf("this machine: %v", err)
	}
	if ids, err := store.List(); err != nil || len(ids) > 0 {
		t.Errorf("left: %v (%v)", ids, err)
	}
	// A half-made one of an earlier life does not matter.
	if err := os.MkdirAll(filepath.Join(store.dir, "check-user-namespaces", "lower"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := store.CheckMapping(t.Context(), newMapping(t)); err != nil {
		t.Errorf("after a crash: %v", err)
	}
	bad := newMapping(t)
	bad.UserNamespace = "/proc/self/ns/user"
	if err := store.CheckMapping(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "id-mapped") {
		t.Errorf("the host's own user namespace: got %v", err)
	}
}
