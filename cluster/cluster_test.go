// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/controllers/nodeipam"
)

func config(dir string) Config {
	cfg := Default()
	cfg.DataDir = datadir.Dir(dir)
	cfg.Port = 0
	cfg.Rootless = true
	return cfg
}

// TestRefusesAndLeavesNothing: every refusal is a sentence, and a directory that was new is gone again.
func TestRefusesAndLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	base := t.TempDir()
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir, want string
		edit            func(*Config)
	}{
		{"port in use", filepath.Join(base, "a"), "is used by another program", func(c *Config) {
			c.Port = taken.Addr().(*net.TCPAddr).Port
		}},
		{"a file in its place", file, "is a file and not a directory", func(*Config) {}},
		{"no such port", filepath.Join(base, "b"), "port 70000 is not between 0 and 65535", func(c *Config) {
			c.Port = 70000
		}},
	} {
		cfg := config(c.dir)
		c.edit(&cfg)
		made, err := New(cfg)
		if err == nil {
			made.Close()
			t.Errorf("%s: no error", c.name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q; want one sentence with %q", c.name, err, c.want)
		}
		if st, err := os.Stat(c.dir); err == nil && st.IsDir() {
			t.Errorf("%s: %s is left", c.name, c.dir)
		}
	}
}

// TestRefusedKubelet: a kubelet that cannot start takes away what it made, and nothing else.
func TestRefusedKubelet(t *testing.T) {
	base := t.TempDir()
	broken := filepath.Join(base, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		role       RoleConfig
	}{
		{"no kubeconfig", "read kubeconfig: ", RoleConfig{}},
		{"broken kubeconfig", "read kubeconfig: ", RoleConfig{Kubeconfig: broken}},
		{"no bootstrap kubeconfig", "file does not exist", RoleConfig{Bootstrap: filepath.Join(base, "none")}},
		{"broken bootstrap kubeconfig", "read kubeconfig: ", RoleConfig{Bootstrap: broken}},
	} {
		// what is in the directory; "": there is none
		for _, state := range []string{"", "keep", "pki/ca.crt", "keelson.pid"} {
			dir := filepath.Join(t.TempDir(), "data")
			if state != "" {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, state)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, state), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c.role.DataDir = datadir.Dir(dir)
			c.role.LogOutput = io.Discard
			if err := RunRole(t.Context(), "kubelet", c.role); err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want one sentence with %q", c.name, err, c.want)
			}
			left, err := os.ReadDir(dir)
			if state == "" {
				if err == nil {
					t.Errorf("%s: %v are left", c.name, left)
				}
				continue
			}
			if _, err := os.Stat(filepath.Join(dir, state)); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if state == "keep" && len(left) != 1 {
				t.Errorf("%s: %v are left in addition to what is not Keelson's", c.name, left)
			}
		}
	}
}

func TestOneInstanceInADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first, err := New(config(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	var busy *datadir.BusyError
	if _, err := New(config(dir)); !errors.As(err, &busy) || busy.Pid != os.Getpid() {
		t.Errorf("second: %v; want a BusyError with pid %d", err, os.Getpid())
	}
	if _, err := os.Stat(filepath.Join(dir, "kubeconfig")); err != nil {
		t.Errorf("the refused one took the first one's files: %v", err)
	}
}

// TestPodRangesOfClustersThatStartTogether: neither has a bridge yet, and no two get the same range.
func TestPodRangesOfClustersThatStartTogether(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	var claims []io.Closer
	for range 40 {
		dir, err := datadir.Dir(filepath.Join(t.TempDir(), "data")).Prepare()
		if err != nil {
			t.Fatal(err)
		}
		ps, claim, err := nodehost.ChoosePodCIDRs(nil, dir, nodeipam.Config{})
		if err != nil {
			t.Fatal(err)
		}
		claims = append(claims, claim)
		p := ps[0]
		if seen[p] {
			t.Errorf("%s was given out twice", p)
		}
		seen[p] = true
		again, other, err := nodehost.ChoosePodCIDRs(nil, dir, nodeipam.Config{})
		if err != nil || again[0] != p {
			t.Errorf("the same directory again: got %s, %v; want %s", again, err, p)
		}
		claims = append(claims, other)
	}
	for _, c := range claims {
		_ = c.Close()
	}
}

// TestLockOfTheDying: a process that was killed has its locks a moment longer, which is no reason to refuse a new one.
func TestLockOfTheDying(t *testing.T) {
	dir, err := datadir.Dir(filepath.Join(t.TempDir(), "data")).Prepare()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.PidFile(), fmt.Appendln(nil, child.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	var busy *datadir.BusyError
	if _, err := dir.Lock(); !errors.As(err, &busy) || busy.Pid != child.Process.Pid {
		t.Errorf("while it runs: %v; want a BusyError with pid %d", err, child.Process.Pid)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for err := error(unix.EINTR); err != nil; { // until it is a zombie, which it stays
		if err = unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil &&
			!errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	locked := make(chan error, 1)
	go func() { // ends when the lock is free
		next, err := dir.Lock()
		if err == nil {
			err = next.Close()
		}
		locked <- err
	}()
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Errorf("once it was killed: %v", err)
	}
	_ = child.Wait() // killed
	if datadir.Alive(child.Process.Pid) || !datadir.Alive(os.Getpid()) {
		t.Error("Alive is wrong about a process that has ended, or about this one")
	}
}

func TestEraseTakesOnlyWhatIsOurs(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	c, err := New(config(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := os.WriteFile(dir.Sub("precious"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Erase(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(string(dir))
	if err != nil || len(left) != 1 || left[0].Name() != "precious" {
		t.Errorf("left %v, %v; want precious alone", left, err)
	}
	if err := os.Remove(dir.Sub("precious")); err != nil {
		t.Fatal(err)
	}
	if err := dir.Erase(); err != nil {
		t.Fatal(err)
	}
	if datadir.Exists(string(dir)) {
		t.Error("the empty directory is left")
	}
}

// TestRoleWithoutLog: a part that is given no place for its log discards it.
func TestRoleWithoutLog(t *testing.T) {
	RoleConfig{}.log().Error("no one reads this")
}
