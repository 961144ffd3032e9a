// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mapped are mappings of 65536 ids from this one on.
func mapped(first uint32) IDMaps {
	m := []IDMap{{Inside: 0, Outside: first, Length: 65536}}
	return IDMaps{UIDs: m, GIDs: m}
}

// owner is the user namespace that a namespace belongs to, by the inode that stat(2) shows.
func owner(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestHoldUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces")
	}
	dir := t.TempDir()
	kinds := []Namespace{NetworkNamespace, IPCNamespace, UTSNamespace}
	if err := HoldUserNamespace(dir, kinds, mapped(655360), exec.CommandContext(t.Context(), "cat")); err != nil {
		t.Fatal(err)
	}
	var user unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "user"), &user); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		if got := owner(t, filepath.Join(dir, string(k))); got != user.Ino {
			t.Errorf("the %s namespace belongs to user namespace %d, want %d", k, got, user.Ino)
		}
	}
	err := InNamespaces(dir, kinds, func() error {
		if err := errors.Join(LoopbackUp(), unix.Sethostname([]byte("inside")),
			Sysctl("net.ipv4.ip_unprivileged_port_start", "0")); err != nil {
			return err
		}
		if err := BecomeOnThread(655360, 655360); err != nil {
			return err
		}
		return errors.Join(Sysctl("kernel.shmmax", "65536"), Sysctl("fs.mqueue.msg_max", "20"))
	})
	if err != nil {
		t.Error(err)
	}
	if uid := os.Geteuid(); uid != 0 {
		t.Errorf("this process is user %d now", uid)
	}
	if h, err := os.Hostname(); err != nil || h == "inside" {
		t.Errorf("the host's name is %q now (%v)", h, err)
	}
	if err := Release(dir, append(kinds, UserNamespace)); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
}

// TestHoldUserNamespaceFails leaves nothing.
func TestHoldUserNamespaceFails(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces")
	}
	overlapping := mapped(655360)
	overlapping.UIDs = append(overlapping.UIDs, overlapping.UIDs...)
	for name, c := range map[string]struct {
		maps IDMaps
		wait string
	}{
		"overlapping mappings": {overlapping, "cat"},
		"no program":           {mapped(655360), "/none"},
		"a program that fails": {mapped(655360), "false"},
	} {
		dir := t.TempDir()
		if err := HoldUserNamespace(dir, []Namespace{UTSNamespace}, c.maps,
			exec.CommandContext(t.Context(), c.wait)); err == nil {
			t.Errorf("%s: made", name)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v (%v)", name, left, err)
		}
	}
}

func TestRootOfMaps(t *testing.T) {
	if u, g, err := mapped(131072).Root(); u != 131072 || g != 131072 || err != nil {
		t.Errorf("got %d, %d, %v", u, g, err)
	}
	if _, _, err := (IDMaps{UIDs: []IDMap{{Inside: 1, Outside: 5, Length: 1}}}).Root(); err == nil {
		t.Error("a namespace without a root has one")
	}
}

func TestMapMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces and mounts")
	}
	dir := t.TempDir()
	if err := HoldUserNamespace(dir, nil, mapped(655360), exec.CommandContext(t.Context(), "cat")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Release(dir, []Namespace{UserNamespace}); err != nil {
			t.Error(err)
		}
	}()
	from := filepath.Join(dir, "from")
	to := filepath.Join(dir, "to")
	for _, d := range []string{from, to} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for uid := range 3 {
		name := filepath.Join(from, fmt.Sprint(uid))
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Chown(name, uid, 65534)); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := MapMount(from, filepath.Join(dir, "user"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := Attach(fd, to); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Unmount(to); err != nil {
			t.Error(err)
		}
	}()
	for uid := range 3 {
		fi, err := os.Stat(filepath.Join(to, fmt.Sprint(uid)))
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); !ok || st.Uid != uint32(655360+uid) || st.Gid != 655360+65534 {
			t.Errorf("file of user %d belongs to %d:%d in the mapped mount", uid, st.Uid, st.Gid)
		}
	}
	// What a kernel cannot map it says.
	if _, err := MapMount("/proc", filepath.Join(dir, "user")); err == nil ||
		!strings.Contains(err.Error(), "does not support id-mapped mounts") {
		t.Errorf("mapping of /proc: got %v", err)
	}
}
