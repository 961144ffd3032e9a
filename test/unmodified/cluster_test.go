// SPDX-License-Identifier: Apache-2.0

package unmodified

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster"
	"keelson/cluster/datadir"
)

// patience is how long a test waits for what must come: much longer than it takes, for slow machines.
const patience = 90 * time.Second

// running is a cluster inside the test, and clients of its administrator.
type running struct {
	kubernetes.Interface
	dynamic    dynamic.Interface
	kubeconfig string
}

// start runs a cluster until the test ends.
func start(t *testing.T, edit func(*cluster.Config)) *running {
	t.Helper()
	cfg := cluster.Default()
	cfg.DataDir = datadir.Dir(t.TempDir())
	cfg.Port = 0
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}
	edit(&cfg)
	c, err := cluster.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, func() { close(ready) }) }() // ends with the test, which waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cluster ended with %v", err)
		}
		c.Close()
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("cluster did not start: %v", err)
	case <-time.After(patience):
		t.Fatalf("cluster was not ready within %s", patience)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", c.DataDir().Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	rest.QPS = -1
	r := &running{kubeconfig: c.DataDir().Kubeconfig()}
	if r.Interface, err = kubernetes.NewForConfig(rest); err != nil {
		t.Fatal(err)
	}
	if r.dynamic, err = dynamic.NewForConfig(rest); err != nil {
		t.Fatal(err)
	}
	return r
}

// kubectl runs the real kubectl, which the built binary carries, with input on its standard input.
func (r *running) kubectl(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	bin, err := filepath.Abs("../../bin/keelson")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: this test runs the built binary's kubectl, `make` builds it", err)
	}
	cmd := exec.CommandContext(t.Context(), bin, append([]string{"kubectl", "--kubeconfig", r.kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must is kubectl that may not fail.
func (r *running) must(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := r.kubectl(t, input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// eventually asks until the answer is empty.
func eventually(t *testing.T, what string, f func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		last := f()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s", what, last)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// tool finds a program of test/clients, or skips the test.
func tool(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join("../../bin/tools", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("SKIPPED: there is no %s in PATH or bin/tools; `make tools` builds it", name)
	}
	return path
}

// module returns the directory of a module that test/clients requires, or skips the test.
func module(t *testing.T, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", path)
	cmd.Dir = "../clients"
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Skipf("SKIPPED: the module %s is not there (%v); `make tools` fetches it", path, err)
	}
	return dir
}

// process is a program that runs until the test ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// launch starts a program. What it wrote is shown when the test fails.
func launch(t *testing.T, bin string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), bin, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "KUBECONFIG=")
	p.cmd.Stdout = p
	p.cmd.Stderr = p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the program does, which end sees to
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.end(t, syscall.SIGTERM)
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			b := p.out.Bytes()
			t.Logf("%s wrote:\n%s", filepath.Base(bin), b[max(0, len(b)-8000):])
		}
	})
	return p
}

// end sends the program a signal and waits until it is gone.
func (p *process) end(t *testing.T, s os.Signal) {
	t.Helper()
	_ = p.cmd.Process.Signal(s) // it may have ended
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Errorf("%s did not end on %v", p.cmd.Path, s)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}
