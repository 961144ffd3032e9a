// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"keelson/cluster/datadir"
	"keelson/lib/waittest"
)

// kubeletAttacks are what small pods of restricted namespaces make the kubelet and the runtime do.
var kubeletAttacks = []attack{
	{name: "references-that-multiply", run: attackReferences},
	{name: "device-owners-of-other-pods", run: attackDeviceOwners},
	{name: "recursive-read-only-if-possible", run: attackReadOnly},
	{name: "output-of-failing-hooks", run: attackHooks},
	{name: "fork-without-end", up: []string{"--pod-max-pids", "200"}, run: attackForks},
	{name: "secrets-on-disk", run: attackSecretsOnDisk},
}

// restrictedPod is the JSON of a pod that Pod Security "restricted" accepts. change fills in its specification and
// its only container.
func restrictedPod(t *testing.T, name string, change func(spec, container map[string]any)) string {
	t.Helper()
	type object = map[string]any
	container := object{
		"name":            "main",
		"image":           "keelson.local/hello",
		"command":         []string{"sleep", "1000"},
		"securityContext": object{"allowPrivilegeEscalation": false, "capabilities": object{"drop": []string{"ALL"}}},
	}
	spec := object{
		"restartPolicy":                 "Never",
		"terminationGracePeriodSeconds": 1,
		"containers":                    []any{container},
		"securityContext": object{
			"runAsNonRoot":   true,
			"runAsUser":      1000,
			"seccompProfile": object{"type": "RuntimeDefault"},
		},
	}
	change(spec, container)
	body, err := json.Marshal(object{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata":   object{"name": name, "namespace": "tenant"},
		"spec":       spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(body) + "\n"
}

// times returns one value n times.
func times(n int, one any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = one
	}
	return out
}

// attackReferences has pods that name one ConfigMap of 1 MB, or their own variables, thousands of times.
func attackReferences(t *testing.T, c *live) {
	tenant(t, c)
	// 8 values of 120 KB, as long as a variable may be.
	var keys []string
	for i := range 8 {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("K%d", i))
		if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 120_000), 0o600); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, "--from-file="+file)
	}
	c.must(t, append([]string{"create", "-n", "tenant", "configmap", "big"}, keys...)...)
	c.must(t, append([]string{"create", "-n", "tenant", "secret", "generic", "big"}, keys...)...)
	c.resetPeak(t)
	before := c.memory(t, "VmHWM")
	pods := multiplyingPods(t)
	c.create(t, pods)
	check := func() {
		t.Helper()
		for _, what := range []string{"doubles", "args", "env-from"} {
			c.eventually(t, "CreateContainerConfigError", "get", "pod", "-n", "tenant", what, "-o",
				"jsonpath={.status.containerStatuses[0].state.waiting.reason}")
		}
		for _, what := range []string{"projected", "items", "downward"} {
			c.eventually(t, "its files take more than 16777216 bytes", "get", "events", "-n", "tenant",
				"--field-selector=reason=FailedMount,involvedObject.name="+what)
		}
		c.eventually(t, "asks for 3001 tokens", "get", "events", "-n", "tenant",
			"--field-selector=reason=FailedMount,involvedObject.name=tokens")
		startsSoon(t, c, "bystander")
	}
	c.alive(t, check)
	peak := c.memory(t, "VmHWM")
	t.Logf("the process took %d MB at most, %d before the pods", peak, before)
	if peak > before+250 {
		t.Errorf("the process took %d MB at most, %d before the pods; want 250 more at most", peak, before)
	}
	if n := inMemory(t, c); n > 16<<20 {
		t.Errorf("secrets take %d MB of memory, want 16 at most", n>>20)
	}
	// They are stored: the next start meets them at once.
	c.kill(t)
	c.start(t)
	c.resetPeak(t)
	check()
	if peak := c.memory(t, "VmHWM"); peak > before+250 {
		t.Errorf("after another start the process took %d MB at most; want %d", peak, before+250)
	}
	c.must(t, "delete", "pods", "-n", "tenant", "--all", "--timeout=60s")
	if n := inMemory(t, c); n != 0 {
		t.Errorf("secrets of deleted pods take %d bytes of memory", n)
	}
}

// tenant makes the namespace of restricted pods.
func tenant(t *testing.T, c *live) {
	t.Helper()
	c.apply(t,
		`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`)
	c.eventually(t, "default", "get", "serviceaccounts", "-n", "tenant", "-o", "name")
}

// create makes objects that are too large for kubectl apply, which stores each twice.
func (c *live) create(t *testing.T, manifest string) {
	t.Helper()
	if out, err := c.kubectl(strings.NewReader(manifest), "create", "-f", "-"); err != nil {
		t.Fatalf("kubectl create: %v\n%s", err, out)
	}
}

func multiplyingPods(t *testing.T) string {
	t.Helper()
	type object = map[string]any
	doubling := func(n int) []any {
		env := []any{object{"name": "A0", "value": "0123456789"}}
		for i := range n {
			env = append(env, object{"name": fmt.Sprint("A", i+1), "value": fmt.Sprintf("$(A%d)$(A%d)", i, i)})
		}
		return env
	}
	project := func(one func(path string) object) func(spec, container object) {
		return func(spec, _ object) {
			var sources []any
			for i := range 3000 {
				sources = append(sources, one(fmt.Sprint("f", i)))
			}
			spec["volumes"] = []any{object{"name": "v", "projected": object{"sources": sources}}}
		}
	}
	var items []any
	for i := range 2000 {
		items = append(items, object{"key": "K0", "path": fmt.Sprint("f", i)})
	}
	var fields []any
	for i := range 3000 {
		fields = append(fields, object{"path": fmt.Sprint("f", i), "fieldRef": object{"fieldPath": "metadata.labels"}})
	}
	return restrictedPod(t, "doubles", func(_, container object) { container["env"] = doubling(26) }) +
		restrictedPod(t, "args", func(_, container object) {
			container["env"] = doubling(12)
			container["args"] = times(1000, "$(A12)")
		}) +
		restrictedPod(t, "env-from", func(_, container object) {
			container["envFrom"] = times(3000, object{"configMapRef": object{"name": "big"}})
		}) +
		restrictedPod(t, "projected", project(func(path string) object {
			return object{"secret": object{"name": "big", "items": []any{object{"key": "K0", "path": path}}}}
		})) +
		restrictedPod(t, "tokens", project(func(path string) object {
			return object{"serviceAccountToken": object{"path": path}}
		})) +
		restrictedPod(t, "items", func(spec, _ object) {
			spec["volumes"] = []any{object{"name": "v", "configMap": object{"name": "big", "items": items}}}
		}) +
		restrictedPod(t, "downward", func(spec, _ object) {
			spec["volumes"] = []any{object{"name": "v", "downwardAPI": object{"items": append(fields, fields...)}}}
		})
}

// startsSoon makes a pod of another tenant, which must be ready within 5 seconds, and deletes it.
func startsSoon(t *testing.T, c *live, name string) {
	t.Helper()
	began := time.Now()
	c.apply(t, hello(name, "sleep 1000", ""))
	c.must(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a bystander's pod was ready after %v, want 5 s at most", took)
	}
	c.must(t, "delete", "pod", name, "--timeout=60s")
}

// inMemory is how many bytes the files of secrets of the tenant's pods take.
func inMemory(t *testing.T, c *live) int64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(c.data, "kubelet", "memory"), &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		t.Fatalf("secrets are on a file system of type %#x, want a tmpfs", fs.Type)
	}
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize // sizes of file systems
}

// attackDeviceOwners looks at the devices of pods before, during and after pods with user namespaces of their own.
func attackDeviceOwners(t *testing.T, c *live) {
	tenant(t, c)
	look := func(name string, ownUsers bool) string {
		return restrictedPod(t, name, func(spec, container map[string]any) {
			spec["hostUsers"] = !ownUsers
			container["command"] = []string{"stat", "/dev/null", "/dev/tty"}
		})
	}
	var during string
	for i := range 5 {
		during += look(fmt.Sprint("mapped-", i), true) + look(fmt.Sprint("plain-", i), false)
	}
	for _, pods := range []string{look("before", false), during, look("after", false)} {
		c.create(t, pods)
		c.must(t, "wait", "-n", "tenant", "--for=jsonpath={.status.phase}=Succeeded", "pod", "--all", "--timeout=60s")
	}
	for name := range strings.FieldsSeq(
		c.must(t, "get", "pods", "-n", "tenant", "-o", "jsonpath={.items[*].metadata.name}")) {
		owner := "uid=0 gid=0"
		if strings.HasPrefix(name, "mapped") { // it has the host's devices, whose owner it cannot see
			owner = "uid=65534 gid=65534"
		}
		if out := c.must(t, "logs", "-n", "tenant", name); strings.Count(out, owner) != 2 {
			t.Errorf("the devices of pod %s do not belong to %s:\n%s", name, owner, out)
		}
	}
}

// attackReadOnly writes to a file system that is mounted below a read-only volume.
func attackReadOnly(t *testing.T, c *live) {
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(below, 0); err != nil {
			t.Error(err)
		}
	})
	c.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  restartPolicy: Never
  volumes: [{name: v, hostPath: {path: %s}}]
  containers:
  - name: main
    image: keelson.local/hello
    command: [sh, -c, "for m in possible enabled disabled; do touch /$m/below/x && echo $m: writable; done; true"]
    volumeMounts:
    - {name: v, mountPath: /possible, readOnly: true, recursiveReadOnly: IfPossible}
    - {name: v, mountPath: /enabled, readOnly: true, recursiveReadOnly: Enabled}
    - {name: v, mountPath: /disabled, readOnly: true}
---
`, dir))
	c.must(t, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer", "--timeout=60s")
	out := c.must(t, "logs", "writer")
	if strings.Contains(out, "possible: writable") || strings.Contains(out, "enabled: writable") ||
		!strings.Contains(out, "disabled: writable") {
		t.Errorf("only the mount that is not recursive may be written to; got:\n%s", out)
	}
	got := c.must(t, "get", "pod", "writer", "-o",
		"jsonpath={.status.containerStatuses[0].volumeMounts[*].recursiveReadOnly}")
	if want := "Enabled Enabled Disabled"; !strings.HasPrefix(got, want) {
		t.Errorf("the status says %q, want %q", got, want)
	}
}

// attackHooks has 16 pods whose hooks print 16 MB on each stream and fail.
func attackHooks(t *testing.T, c *live) {
	tenant(t, c)
	type object = map[string]any
	var pods strings.Builder
	for i := range 16 {
		pods.WriteString(restrictedPod(t, fmt.Sprint("hooks-", i), func(_, container object) {
			script := "dd if=/dev/zero bs=1M count=16; dd if=/dev/zero bs=1M count=16 >&2; exit 1"
			hook := object{"exec": object{"command": []string{"sh", "-c", script}}}
			container["lifecycle"] = object{"postStart": hook, "preStop": hook}
		}))
	}
	c.resetPeak(t)
	before := c.memory(t, "VmHWM")
	c.create(t, pods.String())
	c.alive(t, func() {
		c.must(t, "wait", "-n", "tenant", "--for=jsonpath={.status.phase}=Failed", "pod", "--all", "--timeout=120s")
	})
	peak := c.memory(t, "VmHWM")
	t.Logf("the process took %d MB at most, %d before the pods", peak, before)
	if peak > before+200 {
		t.Errorf("the process took %d MB at most, %d before the pods; want 200 more at most", peak, before)
	}
	if out := c.must(t, "get", "pods,events", "-n", "tenant", "-o", "json"); len(out) > 1<<20 {
		t.Errorf("pods and events have %d bytes, want 1 MB at most", len(out))
	}
}

// attackForks has a pod that starts processes without end.
func attackForks(t *testing.T, c *live) {
	tenant(t, c)
	c.create(t, restrictedPod(t, "forks", func(_, container map[string]any) {
		container["command"] = []string{"sh", "-c", "while true; do /hello sleep 1000 & done"}
	}))
	uid := ""
	for end := time.Now().Add(patience); uid == "" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		uid = c.must(t, "get", "pod", "forks", "-n", "tenant", "-o", "jsonpath={.metadata.uid}")
	}
	read := func(file string) int {
		for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
			b, err := os.ReadFile(filepath.Join(root, "keelson-"+datadir.Dir(c.data).ID(), "pods", file))
			if err == nil {
				n, _ := strconv.Atoi(strings.TrimSpace(string(b))) // "max" is no number
				return n
			}
		}
		return 0
	}
	most := 0
	for end := time.Now().Add(patience); most < 150 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		most = max(most, read("pod"+uid+"/pids.current"))
	}
	startsSoon(t, c, "bystander")
	if limit := read("pod" + uid + "/pids.max"); limit != 200 || most < 150 || most > 200 {
		t.Errorf("the pod had %d processes, and its limit is %d; want between 150 and 200, and 200", most, limit)
	}
	if all := read("pids.max"); all <= 200 {
		t.Errorf("the limit of all pods is %d", all)
	}
	c.must(t, "delete", "pod", "forks", "-n", "tenant", "--timeout=60s")
	// the kubelet removes it after the object
	waittest.Until(t, "the cgroup of the deleted pod goes", func() bool { return read("pod"+uid+"/pids.max") == 0 })
}

// attackSecretsOnDisk looks for the value of a Secret in the runtime's and the kubelet's files, as somebody who has
// the disk does.
func attackSecretsOnDisk(t *testing.T, c *live) {
	tenant(t, c)
	const value = "value-of-the-secret"
	c.must(t, "create", "secret", "generic", "token", "-n", "tenant", "--from-literal=t="+value)
	type object = map[string]any
	c.create(t, restrictedPod(t, "reader", func(spec, container object) {
		ref := object{"secretKeyRef": object{"name": "token", "key": "t"}}
		container["env"] = []any{object{"name": "T", "valueFrom": ref}}
		container["command"] = []string{"sh", "-c", "sleep 1000"}
		container["args"] = []string{"$(T)"}
		container["volumeMounts"] = []any{object{"name": "v", "mountPath": "/v"}}
		container["lifecycle"] = object{
			"postStart": object{"exec": object{"command": []string{"sh", "-c", "cat /v/t"}}},
		}
		spec["volumes"] = []any{object{"name": "v", "secret": object{"secretName": "token"}}}
	}))
	c.must(t, "wait", "-n", "tenant", "--for=condition=PodReadyToStartContainers", "pod/reader", "--timeout=60s")
	c.eventually(t, "Started", "get", "events", "-n", "tenant")
	var data unix.Stat_t
	if err := unix.Stat(c.data, &data); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"runtime", "kubelet", "logs"} {
		err := filepath.WalkDir(filepath.Join(c.data, dir), func(path string, d os.DirEntry, err error) error {
			var st unix.Stat_t
			if err != nil || !d.Type().IsRegular() || unix.Lstat(path, &st) != nil || st.Dev != data.Dev {
				return nil //nolint:nilerr // files come and go, and what is on a tmpfs is not on the disk
			}
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(value)) {
				t.Errorf("the value of the secret is in %s", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
