// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nodeAttacks are what pods do to their node.
var nodeAttacks = []attack{
	{name: "log-flood", run: attackLogs},
	{name: "emptydir-beyond-its-limit", run: attackEmptyDir},
	{name: "writable-layer-beyond-its-limit", run: attackWritableLayer},
	{name: "host-port-of-the-api", run: attackHostPort},
	{name: "unsafe-sysctl", run: attackSysctl},
}

// hello is a pod of the built-in image that runs a line of shell.
func hello(name, script, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: keelson.local/hello
    command: [sh, -c, %q]
%s---
`, name, script, more)
}

// attackLogs writes as fast as it can for 15 seconds.
func attackLogs(t *testing.T, c *live) {
	c.apply(t, hello("flood", "while true; do echo "+strings.Repeat("0123456789", 100)+"; done", ""))
	c.must(t, "wait", "--for=condition=Ready", "pod/flood", "--timeout=60s")
	var most int64
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		most = max(most, treeSize(filepath.Join(c.data, "kubelet")), treeSize(filepath.Join(c.data, "logs")))
	}
	t.Logf("the logs took %d MB at most", most>>20)
	if most > 80<<20 { // 5 files of 10 MiB, and one that is being compressed
		t.Errorf("the logs took %d MB, want 5 files of 10 MB at most", most>>20)
	}
	if out := c.must(t, "logs", "flood", "--tail=5"); strings.Count(out, "\n") != 5 {
		t.Errorf("the last five lines: %d, the first of them %.100q", strings.Count(out, "\n"), out)
	}
}

// treeSize is the size of the files below dir. Files that vanish meanwhile do not count.
func treeSize(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(path, ".log") {
			if fi, err := d.Info(); err == nil {
				n += fi.Size()
			}
		}
		return nil
	})
	return n
}

func attackEmptyDir(t *testing.T, c *live) {
	c.apply(t, hello("hog", "for i in 1 2 3 4 5 6 7 8 9 10; do cat /proc/self/exe >>/volume/file; done; sleep 1000",
		`    volumeMounts: [{name: volume, mountPath: /volume}]
  volumes: [{name: volume, emptyDir: {sizeLimit: 10Mi}}]
`))
	out := c.eventuallyWithin(t, 2*time.Minute, "Evicted", "get", "pod", "hog", "-o",
		"jsonpath={.status.phase} {.status.reason} {.status.message}")
	if want := `Failed Evicted Usage of EmptyDir volume "volume" exceeds the limit "10Mi". `; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func attackWritableLayer(t *testing.T, c *live) {
	c.apply(t, hello("hog", "for i in 1 2 3 4 5 6 7 8 9 10; do cat /proc/self/exe >>/file; done; sleep 1000",
		`    resources: {limits: {ephemeral-storage: 10Mi}}
`))
	out := c.eventuallyWithin(t, 2*time.Minute, "Evicted", "get", "pod", "hog", "-o",
		"jsonpath={.status.phase} {.status.reason} {.status.message}")
	if !strings.HasPrefix(out, "Failed Evicted ") ||
		!strings.Contains(out, `ephemeral local storage usage exceeds the total limit of containers 10Mi`) &&
			!strings.Contains(out, `Container main exceeded its local ephemeral storage limit "10Mi"`) {
		t.Errorf("got %q", out)
	}
}

// attackHostPort asks for the API server's own port.
func attackHostPort(t *testing.T, c *live) {
	u, err := url.Parse(c.config(t).Host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, hello("thief", "sleep 1000", fmt.Sprintf("    ports: [{containerPort: 80, hostPort: %d}]\n", port)))
	c.eventuallyWithin(t, time.Minute, strconv.Itoa(port), "get", "events",
		"--field-selector=involvedObject.name=thief,type=Warning", "-o", "jsonpath={.items[*].message}")
	for range 20 { // the API answers all the time
		if out := c.must(t, "get", "pod", "thief", "-o", "jsonpath={.status.phase}"); out == "Running" {
			t.Fatal("the pod runs with the API's port")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func attackSysctl(t *testing.T, c *live) {
	c.apply(t, `apiVersion: v1
kind: Pod
metadata: {name: unsafe}
spec:
  restartPolicy: Never
  securityContext: {sysctls: [{name: kernel.msgmax, value: "65536"}]}
  containers: [{name: main, image: keelson.local/hello}]
---
`)
	out := c.eventuallyWithin(t, time.Minute, "SysctlForbidden", "get", "pod", "unsafe", "-o",
		"jsonpath={.status.phase} {.status.reason}")
	if out != "Failed SysctlForbidden" {
		t.Errorf("got %q", out)
	}
}

// openFiles is how many descriptors the cluster's process has.
func (c *live) openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.pid(t)))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
