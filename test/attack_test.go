// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
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

// attack is one attempt to take a cluster down, to get further than one's rights, or to make it lose or leak something.
// Each has a cluster of its own and ends in bounded time.
type attack struct {
	name string
	up   []string // further arguments of keelson up
	run  func(t *testing.T, c *live)
}

// TestAttack runs every attack. `make attack` and nightly CI set KEELSON_ATTACK: they take minutes and gigabytes of
// memory. Each weakness has a small test of its own in the room it was found in, which runs always.
func TestAttack(t *testing.T) {
	if os.Getenv("KEELSON_ATTACK") == "" {
		t.Skip("set KEELSON_ATTACK=1, or run `make attack`: these attacks take minutes and gigabytes of memory")
	}
	for _, a := range slices.Concat(serverAttacks, nodeAttacks, kubeletAttacks, imageAttacks, dataAttacks, lifeAttacks,
		networkAttacks, storeAttacks, streamAttacks) {
		t.Run(a.name, func(t *testing.T) { a.run(t, startCluster(t, a.up...)) })
	}
}

// startCluster starts a cluster that ends with the test, and must leave nothing in the kernel.
func startCluster(t *testing.T, args ...string) *live {
	t.Helper()
	c := newCluster(t)
	c.start(t, args...)
	return c
}

// newCluster is a cluster that is not started yet.
func newCluster(t *testing.T) *live {
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
	cmd := exec.CommandContext(ctx, c.bin, append(args, "--data-dir", c.data)...)
	if c.cgroup != "" {
		cmd.Path = "/bin/sh"
		cmd.Args = append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, c.cgroup}, cmd.Args...)
	}
	out, err := cmd.CombinedOutput()
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

// ownClient has connections of its own: client-go's have one transport for equal configurations, so
// that a health check would wait for a stream of the attack's connections.
func ownClient(t *testing.T, cfg *rest.Config) *http.Client {
	t.Helper()
	conf, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: cfg.Timeout}
}

// alive measures how long /livez takes and how long the node's lease takes while run goes on, and fails when one takes
// longer than a second: the node would be lost.
func (c *live) alive(t *testing.T, run func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	node := c.must(t, "get", "leases", "-n", "kube-node-lease", "-o", "jsonpath={.items[0].metadata.name}")
	var out, errs bytes.Buffer
	cmd := exec.Command(self, "-test.run=^TestProbe$")
	cmd.Env = append(os.Environ(), probeEnv+"="+c.data, probeLease+"="+node)
	cmd.Stdout = &out
	cmd.Stderr = &errs
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	run()
	_ = stop.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("probe: %v\n%s%s", err, &out, &errs)
	}
	n := 0
	for line := range strings.Lines(out.String()) {
		var path, worst string
		if _, err := fmt.Sscanf(line, "worst %s %s", &path, &worst); err != nil {
			continue
		}
		took, err := time.ParseDuration(worst)
		if err != nil {
			t.Fatal(err)
		}
		n++
		t.Logf("GET %s took at most %v", path, took.Round(time.Millisecond))
		if took > time.Second {
			t.Errorf("GET %s took %v under attack, want under 1 s", path, took)
		}
	}
	if n != 2 {
		t.Errorf("the probe reported %d figures:\n%s", n, &out)
	}
}

// standardInputEnds is closed when the parent process wants this one to end.
func standardInputEnds() <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with standard input
		defer close(done)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return done
}

const probeEnv, probeLease = "KEELSON_PROBE", "KEELSON_PROBE_LEASE"

// TestProbe is what alive runs as a process of its own, as kubelets are: in the attacker's process it would wait for
// the attacker's goroutines. It asks on one connection until its standard input ends.
func TestProbe(t *testing.T) {
	data := os.Getenv(probeEnv)
	if data == "" {
		t.Skip("the probe of TestAttack")
	}
	cfg := (&live{data: data}).config(t)
	cfg.Timeout = 20 * time.Second
	client := ownClient(t, cfg)
	done := standardInputEnds()
	paths := []string{
		"/livez", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + os.Getenv(probeLease),
	}
	worst := make([]time.Duration, len(paths))
	for {
		for i, path := range paths {
			began := time.Now()
			resp, err := client.Get(cfg.Host + path)
			if err != nil {
				t.Errorf("GET %s: %v", path, err)
				worst[i] = cfg.Timeout
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body) // or the next one needs a new connection
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("GET %s: %s", path, resp.Status)
			}
			worst[i] = max(worst[i], time.Since(began))
		}
		select {
		case <-done:
			for i, path := range paths {
				fmt.Printf("worst %s %v\n", path, worst[i])
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
