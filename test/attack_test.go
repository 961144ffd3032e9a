// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// attack is one attempt to take a cluster down, to get further than one's rights, or to make it lose or leak something. Each has a
// cluster of its own and ends in bounded time.
type attack struct {
	name string
	up   []string // further arguments of keelson up
	run  func(t *testing.T, c *live)
}

// TestAttack runs every attack. `make attack` and nightly CI set KEELSON_ATTACK: they take minutes and gigabytes of memory. Each
// weakness has a small test of its own in the room it was found in, which runs always.
func TestAttack(t *testing.T) {
	if os.Getenv("KEELSON_ATTACK") == "" {
		t.Skip("set KEELSON_ATTACK=1, or run `make attack`: these attacks take minutes and gigabytes of memory")
	}
	for _, a := range slices.Concat(serverAttacks, nodeAttacks, dataAttacks, lifeAttacks) {
		t.Run(a.name, func(t *testing.T) { a.run(t, startCluster(t, a.up...)) })
	}
}

// startCluster starts a cluster that ends with the test, and must leave nothing in the kernel.
func startCluster(t *testing.T, args ...string) *live {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: real containers")
	}
	c := &live{bin: binary(t), data: filepath.Join(t.TempDir(), "data")}
	before := kernelState()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, c.bin, "down", "--data-dir", c.data).CombinedOutput()
		if err != nil && !bytes.Contains(out, []byte("no cluster in")) {
			t.Errorf("keelson down: %v\n%s", err, out)
		}
		if diff := leaked(before, kernelState(), c.data); diff != "" {
			t.Errorf("left behind after `keelson down`:\n%s", diff)
		}
	})
	c.start(t, args...)
	return c
}

func (c *live) start(t *testing.T, args ...string) {
	t.Helper()
	if out, err := c.keelson(append([]string{"up", "--detach", "--port", "0"}, args...)...); err != nil {
		t.Fatalf("keelson up: %v\n%s", err, out)
	}
}

// keelson runs the program on this cluster's data directory, for at most two minutes.
func (c *live) keelson(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.bin, append(args, "--data-dir", c.data)...).CombinedOutput()
	return string(out), err
}

// must runs kubectl and ends the test when it fails.
func (c *live) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.kubectl(nil, args...)
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return out
}

func (c *live) config(t *testing.T) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

func (c *live) pid(t *testing.T) int {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(readHost(t, filepath.Join(c.data, "keelson.pid")), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// kill ends the cluster's process as a crash does. Containers go on.
func (c *live) kill(t *testing.T) {
	t.Helper()
	pid := c.pid(t)
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || zombie(pid) {
			return
		}
	}
	t.Fatalf("process %d did not die", pid)
}

// memory is a figure of /proc/PID/status in MB: VmRSS, or VmHWM, the highest since resetPeak.
func (c *live) memory(t *testing.T, key string) int {
	t.Helper()
	for line := range strings.Lines(readHost(t, fmt.Sprintf("/proc/%d/status", c.pid(t)))) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			kb, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kb >> 10
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

func (c *live) resetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", c.pid(t)), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// cpu is the processor time that the cluster's process has taken.
func (c *live) cpu(t *testing.T) time.Duration {
	t.Helper()
	stat := readHost(t, fmt.Sprintf("/proc/%d/stat", c.pid(t)))
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	var ticks int
	for _, v := range f[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// alive measures how long /livez takes and how long the renewal of the node's lease takes while run goes on, and fails when one takes
// longer than a second: the node would be lost.
func (c *live) alive(t *testing.T, run func()) {
	t.Helper()
	cfg := c.config(t)
	cfg.Timeout = 20 * time.Second
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	node := c.must(t, "get", "leases", "-n", "kube-node-lease", "-o", "jsonpath={.items[0].metadata.name}")
	done := make(chan struct{})
	go func() { // ends with run
		defer close(done)
		run()
	}()
	worst := map[string]time.Duration{}
	for {
		for _, path := range []string{"/livez", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + node} {
			began := time.Now()
			resp, err := client.Get(cfg.Host + path)
			if err != nil {
				t.Errorf("GET %s: %v", path, err)
				worst[path] = cfg.Timeout
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("GET %s: %s", path, resp.Status)
			}
			worst[path] = max(worst[path], time.Since(began))
		}
		select {
		case <-done:
			for path, took := range worst {
				t.Logf("GET %s took at most %v", path, took.Round(time.Millisecond))
				if took > time.Second {
					t.Errorf("GET %s took %v under attack, want under 1 s", path, took)
				}
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
