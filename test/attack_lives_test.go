// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// lifeAttacks are lives of pods and nodes that end in unusual ways.
var lifeAttacks = []attack{
	{name: "exec-races-the-end", run: attackExec},
	{name: "forced-at-once", run: attackForced},
	{name: "killed-during-a-start", run: attackKilledStart},
	{name: "fake-nodes-without-a-simulator", up: []string{"--fake-nodes", "3"}, run: attackFakeNodes},
}

// attackExec kills containers while they are probed by exec every second, and stops the cluster.
func attackExec(t *testing.T, c *live) {
	var pods strings.Builder
	for i := range 20 {
		fmt.Fprintf(&pods, `apiVersion: v1
kind: Pod
metadata: {name: probed-%d}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: keelson.local/hello
    command: [sh, -c, sleep 1000]
    startupProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 3}
---
`, i)
	}
	c.apply(t, pods.String())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, c.bin, "kubectl", "--data-dir", c.data, "exec", "probed-"+strconv.Itoa(i),
					"--", "sleep", "1").Run()
			}
		})
	}
	wg.Wait()
	began := time.Now()
	if out, err := c.kubectl(nil, "delete", "pods", "--all", "--timeout=60s"); err != nil {
		t.Errorf("delete after %v: %v\n%s", time.Since(began), err, out)
	}
	for _, pid := range names("/proc") {
		if n, err := strconv.Atoi(pid); err == nil && zombie(n) && strings.Contains(comm(n), "runc") {
			t.Errorf("a zombie: %s %s", pid, comm(n))
		}
	}
}

func comm(pid int) string {
	out, _ := exec.Command("cat", fmt.Sprintf("/proc/%d/comm", pid)).Output()
	return strings.TrimSpace(string(out))
}

// attackForced force-deletes 50 pods with a volume each within half a second of their creation, and their namespace.
func attackForced(t *testing.T, c *live) {
	c.must(t, "run", "warm", "--image=keelson.local/hello")
	c.must(t, "wait", "--for=condition=Ready", "pod/warm", "--timeout=60s")
	c.must(t, "delete", "pod", "warm", "--force", "--grace-period=0")
	time.Sleep(2 * time.Second) // until what the pod had is given back
	files := c.openFiles(t)
	goroutines := c.goroutines(t)
	c.must(t, "create", "namespace", "forced")
	var objects strings.Builder
	for i := range 50 {
		fmt.Fprintf(&objects, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: forced}\n---\n", i)
		objects.WriteString(strings.Replace(hello(fmt.Sprintf("p%d", i), "sleep 1000", fmt.Sprintf(
			"    volumeMounts: [{name: volume, mountPath: /volume}]\n  volumes: [{name: volume, configMap: {name: "+
				"c%d}}]\n", i)), "metadata: {", "metadata: {namespace: forced, ", 1))
	}
	c.apply(t, objects.String())
	c.must(t, "delete", "pods", "-n", "forced", "--all", "--force", "--grace-period=0", "--wait=false")
	c.must(t, "delete", "namespace", "forced", "--timeout=60s")
	deadline := time.Now().Add(2 * time.Minute)
	for {
		nowFiles := c.openFiles(t)
		nowGoroutines := c.goroutines(t)
		if nowFiles <= files+10 && nowGoroutines <= goroutines+20 {
			t.Logf("%d files and %d goroutines before, %d and %d after", files, goroutines, nowFiles, nowGoroutines)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d files and %d goroutines before, %d and %d two minutes after", files, goroutines, nowFiles,
				nowGoroutines)
		}
		time.Sleep(time.Second)
	}
}

// attackKilledStart kills the cluster twice while it pulls an image for a pod. The pod is then held back, and says so;
// others start.
func attackKilledStart(t *testing.T, c *live) {
	registry := startHostileRegistry(t)
	pod := hello("bad", "sleep 1000", "")
	c.apply(t, strings.Replace(pod, "keelson.local/hello", registry.addr+"/slow/bad:1", 1))
	c.apply(t, strings.ReplaceAll(pod, "bad", "neighbour"))
	c.must(t, "wait", "--for=condition=Ready", "pod/neighbour", "--timeout=60s")
	for n := 1; n <= 2; n++ {
		for end := time.Now().Add(patience); registry.requests("slow/bad") < n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("pull %d did not begin", n)
			}
		}
		c.kill(t)
		c.start(t)
	}
	c.eventuallyWithin(t, patience, "Keelson ended 2 times while this pod was starting", "get", "events", "-o",
		"jsonpath={.items[?(@.reason==\"StartHeldBack\")].message}")
	c.eventually(t, "StartHeldBack", "get", "pod", "bad", "-o",
		"jsonpath={.status.containerStatuses[0].state.waiting.reason}")
	c.apply(t, strings.ReplaceAll(pod, "bad", "other"))
	c.must(t, "wait", "--for=condition=Ready", "pod/other", "pod/neighbour", "--timeout=60s")
	if n := registry.requests("slow/bad"); n != 2 {
		t.Errorf("the image was pulled %d times, want twice", n)
	}
	c.must(t, "delete", "pod", "bad", "--timeout=60s")
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := names(filepath.Join(c.data, "kubelet", "starting"))
		if len(left) == 1 { // the image's
			break
		}
		if time.Now().After(end) {
			t.Fatalf("records of starts: %q, want that of the image", left)
		}
	}
}

// goroutines is the metric go_goroutines.
func (c *live) goroutines(t *testing.T) int {
	t.Helper()
	for line := range strings.Lines(c.must(t, "get", "--raw", "/metrics")) {
		if v, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no metric go_goroutines")
	return 0
}

// attackFakeNodes starts again without the fake nodes that pods are bound to.
func attackFakeNodes(t *testing.T, c *live) {
	c.must(t, "create", "deployment", "web", "--image=keelson.local/hello", "--replicas=8")
	c.must(t, "rollout", "status", "deployment/web", "--timeout=60s")
	if out, err := c.keelson("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.start(t)
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		ready := strings.Count(c.must(t, "get", "nodes", "--no-headers"), " Ready ")
		if ready == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d nodes are Ready, want one:\n%s", ready, c.must(t, "get", "nodes"))
		}
	}
	c.must(t, "delete", "deployment", "web")
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		out := c.must(t, "get", "pods", "-o", "name")
		if out == "" || strings.Contains(out, "No resources") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("pods hang in deletion:\n%s", c.must(t, "get", "pods", "-o", "wide"))
		}
	}
}
