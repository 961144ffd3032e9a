// SPDX-License-Identifier: Apache-2.0

// Package etcdtest starts real etcd servers for tests, which skip loudly where
// there is none: the one in PATH (Debian's etcd-server), or the program that
// KEELSON_ETCD names. Tests import it and nothing else does.
package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Member is one etcd process.
type Member struct {
	// URL is where clients find it.
	URL  string
	peer string
	args []string
	dir  string
	bin  string

	mu  sync.Mutex
	cmd *exec.Cmd
}

// Files are the certificates of a member that speaks TLS and asks clients for theirs.
type Files struct{ CA, Cert, Key string }

// Start starts a cluster of n members, empty, which ends with the test. It skips the test when there is no etcd. A nil
// Files means plain HTTP on loopback.
func Start(t testing.TB, n int, files *Files) []*Member {
	t.Helper()
	return startAny(t, n, files, "")
}

// StartFrom starts a cluster of one member with what a snapshot holds, by etcd's own restore command.
func StartFrom(t testing.TB, snapshot string) *Member {
	t.Helper()
	return startAny(t, 1, nil, snapshot)[0]
}

// Tool finds a program of etcd: etcd, etcdctl, etcdutl. "" when it is not there.
func Tool(name string) string {
	etcd := os.Getenv("KEELSON_ETCD")
	switch {
	case etcd != "" && name == "etcd":
		return etcd
	case etcd != "":
		name = filepath.Join(filepath.Dir(etcd), name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

func startAny(t testing.TB, n int, files *Files, snapshot string) []*Member {
	t.Helper()
	bin := Tool("etcd")
	if bin == "" {
		t.Skip("SKIPPED: no etcd on this machine (Debian: etcd-server)")
	}
	for try := 0; ; try++ { // a free port may be taken by somebody else before etcd has it
		members, err := start(t, bin, n, files, snapshot)
		if err == nil {
			return members
		}
		if try == 4 || !strings.Contains(err.Error(), "address already in use") {
			t.Fatalf("start etcd: %v", err)
		}
	}
}

// tempDir is in memory where there is room for it: what etcd does with the disk is not what is tested.
func tempDir(t testing.TB) string {
	const enough = 1 << 30 // each member takes 64 MB for its log at once
	var st syscall.Statfs_t
	// no file system has blocks of negative size
	if err := syscall.Statfs("/dev/shm", &st); err != nil || st.Bavail*uint64(st.Bsize) < enough {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "keelson-etcd-*") //nolint:usetesting // t.TempDir would be on the disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// restore fills the data directory of m, the only member, from a snapshot.
func (m *Member) restore(t testing.TB, cluster, token, snapshot string) {
	t.Helper()
	bin := Tool("etcdutl") // before 3.5 etcdctl did it
	if bin == "" {
		bin = Tool("etcdctl")
	}
	if bin == "" {
		t.Skip("SKIPPED: no etcdutl and no etcdctl on this machine (Debian: etcd-client)")
	}
	cmd := exec.CommandContext(t.Context(), bin, "snapshot", "restore", snapshot, "--name", "m0", "--initial-cluster",
		cluster,
		"--initial-cluster-token", token, "--initial-advertise-peer-urls", m.peer, "--data-dir", filepath.Join(m.dir,
			"data"))
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s snapshot restore: %v\n%s", bin, err, out)
	}
}

func start(t testing.TB, bin string, n int, files *Files, snapshot string) ([]*Member, error) {
	scheme := "http"
	if files != nil {
		scheme = "https"
	}
	members := make([]*Member, n)
	var cluster []string
	for i := range members {
		m := &Member{
			bin:  bin,
			dir:  tempDir(t),
			URL:  scheme + "://" + free(t),
			peer: "http://" + free(t),
		}
		members[i] = m
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, m.peer))
	}
	for i, member := range members {
		member.args = []string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(member.dir, "data"),
			"--listen-client-urls", member.URL, "--advertise-client-urls", member.URL,
			"--listen-peer-urls", member.peer, "--initial-advertise-peer-urls", member.peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", members[0].dir,
			"--heartbeat-interval", "50", "--election-timeout", "500",
		}
		if files != nil {
			member.args = append(member.args, "--client-cert-auth", "--trusted-ca-file", files.CA, "--cert-file",
				files.Cert,
				"--key-file", files.Key)
		}
		if snapshot != "" {
			member.restore(t, strings.Join(cluster, ","), members[0].dir, snapshot)
		}
		member.Run(t)
		t.Cleanup(func() { member.Kill(t) })
	}
	for _, m := range members {
		if err := m.wait(files); err != nil {
			for _, m := range members {
				m.Kill(t)
			}
			return nil, err
		}
	}
	return members, nil
}

// free is an address that no one listens on, from below the ports that the kernel gives to those who ask for any: a
// member that was killed finds it free again.
func free(t testing.TB) string {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(10000)) // no secret
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
		if err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// Run starts the process, again after Kill.
func (m *Member) Run(t testing.TB) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd = exec.Command(m.bin, m.args...) //nolint:noctx // Kill ends it
	m.cmd.Dir = m.dir
	out, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	m.cmd.Stdout = out
	m.cmd.Stderr = out
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatalf("start etcd: %v", err)
	}
}

// Kill kills the process; harmless when it is not running.
func (m *Member) Kill(testing.TB) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// Pause stops the process from answering, Continue lets it go on.
func (m *Member) Pause(t testing.TB) { m.signal(t, syscall.SIGSTOP) }

// Continue undoes Pause.
func (m *Member) Continue(t testing.TB) { m.signal(t, syscall.SIGCONT) }

func (m *Member) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// wait returns when the member serves: its port is open, and without TLS it answers too.
func (m *Member) wait(files *Files) error {
	end := time.Now().Add(time.Minute)
	for {
		err := m.answers(files)
		if err == nil {
			return nil
		}
		log, _ := os.ReadFile(filepath.Join(m.dir, "log"))
		if time.Now().After(end) || bytes.Contains(log, []byte("address already in use")) {
			return fmt.Errorf("%w\n%s", err, log[max(0, len(log)-4000):])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (m *Member) answers(files *Files) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if files != nil {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(m.URL, "https://"))
		if err != nil {
			return err
		}
		return c.Close()
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.URL}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = c.Get(ctx, "ready")
	return err
}

// Leads reports whether the member is the leader.
func (m *Member) Leads(t testing.TB) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.URL}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	st, err := c.Status(ctx, m.URL)
	if err != nil {
		t.Fatal(err)
	}
	return st.Leader == st.Header.MemberId
}

// LeadsNow reports whether the member answers and is the leader.
func (m *Member) LeadsNow(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.URL}, Logger: zap.NewNop()})
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	st, err := c.Status(ctx, m.URL)
	return err == nil && st.Leader == st.Header.MemberId
}

// URLs are where the members are.
func URLs(members []*Member) []string {
	var out []string
	for _, m := range members {
		out = append(out, m.URL)
	}
	return out
}
