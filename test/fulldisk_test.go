// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fullDisk is a cluster or a node whose data directory is on a small disk of its own.
type fullDisk struct {
	bin, disk, data, kubeconfig string
}

// newDisk mounts a small disk for a data directory. What runs on it ends with the test.
func newDisk(t *testing.T) fullDisk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a file system of its own")
	}
	disk := t.TempDir()
	if err := unix.Mount("keelson-test", disk, "tmpfs", 0, "size=256m"); err != nil {
		t.Skipf("SKIPPED: cannot mount a small tmpfs: %v", err)
	}
	f := fullDisk{bin: binary(t), disk: disk, data: filepath.Join(disk, "data")}
	f.kubeconfig = f.data + "/kubeconfig"
	t.Cleanup(func() {
		_ = os.Remove(f.ballast())
		if out, err := exec.Command(f.bin, "down", "--purge", "--yes", "--data-dir", f.data).CombinedOutput(); err != nil {
			t.Errorf("keelson down: %v\n%s", err, out)
		}
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return f
}

func (f fullDisk) ballast() string { return filepath.Join(f.disk, "ballast") }

// fill takes the disk's room but for so many bytes.
func (f fullDisk) fill(t *testing.T, but int64) {
	t.Helper()
	file, err := os.OpenFile(f.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(f.disk, &st); err != nil {
			t.Fatal(err)
		}
		n := min(int64(st.Bfree)*st.Bsize-but, 1<<20)
		if n <= 0 {
			return
		}
		if _, err := file.Write(make([]byte, n)); errors.Is(err, unix.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// start begins a command with that data directory, and returns what kills it by SIGKILL and returns its output.
func (f fullDisk) start(t *testing.T, args ...string) (kill func() string) {
	t.Helper()
	cmd := exec.Command(f.bin, append(args, "--data-dir", f.data, "--eviction-hard", "memory.available<1Mi")...)
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = file
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() string {
		if !killed {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
			_ = file.Close()
			killed = true
		}
		b, _ := os.ReadFile(log)
		return string(b)
	}
	t.Cleanup(func() {
		if out := kill(); t.Failed() {
			t.Logf("keelson %s:\n%s", args[0], out)
		}
	})
	return kill
}

func (f fullDisk) kubectl(args ...string) (string, error) {
	out, err := exec.Command(f.bin, append([]string{
		"kubectl", "--kubeconfig", f.kubeconfig, "--request-timeout=20s",
	}, args...)...).CombinedOutput()
	return string(out), err
}

func (f fullDisk) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %s: %s", patience, what)
		}
	}
}

// renewed is when the node's kubelet last renewed its lease, and whether the node is Ready.
func (f fullDisk) renewed() (when string, ready bool) {
	when, _ = f.kubectl("get", "lease", "-n", "kube-node-lease", "small", "-o", "jsonpath={.spec.renewTime}")
	out, err := f.kubectl("get", "node", "small")
	return when, err == nil && strings.Contains(out, " Ready ")
}

// back waits until the node that was killed is Ready by a lease that it renewed since.
func (f fullDisk) back(t *testing.T, before string) {
	t.Helper()
	f.until(t, "the node is back", func() bool {
		now, ready := f.renewed()
		return ready && strings.HasPrefix(now, "20") && now != before
	})
}

// pod runs a pod on the node.
func (f fullDisk) pod(t *testing.T, name string) {
	t.Helper()
	f.run(t, "run", name, "--image=keelson.local/hello", "--overrides", `{"spec":{"nodeName":"small"}}`)
	f.run(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
}

// answers waits until the pod answers.
func (f fullDisk) answers(t *testing.T, name string) {
	t.Helper()
	f.until(t, "the pod "+name+" answers", func() bool {
		out, err := f.kubectl("exec", name, "--", "echo", "here")
		return err == nil && out == "here\n"
	})
}

func (f fullDisk) run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := f.kubectl(args...); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestKilledOnAFullDisk: objects fill the disk to the last block, then the cluster is killed. It starts again, has what
// it acknowledged, and takes deletions.
func TestKilledOnAFullDisk(t *testing.T) {
	disk := newDisk(t)
	up := []string{"up", "--port", "0", "--node-name", "small", "--quota-backend-bytes", "-1"}
	kill := disk.start(t, up...)
	disk.until(t, "the node is Ready", func() bool {
		_, ready := disk.renewed()
		return ready
	})
	disk.pod(t, "hello")
	disk.fill(t, 6<<20)
	acknowledged := 0
	refusal := ""
	for refusal == "" && acknowledged < 50 {
		noise := make([]byte, 600<<10)
		_, _ = rand.Read(noise) // it never fails
		manifest := filepath.Join(t.TempDir(), "full.json")
		if err := os.WriteFile(manifest, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"full-%d"},"data":{"noise":%q}}`,
			acknowledged, base64.StdEncoding.EncodeToString(noise)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := disk.kubectl("create", "-f", manifest); err != nil {
			refusal = out
		} else {
			acknowledged++
		}
	}
	if acknowledged < 2 || !strings.Contains(refusal, "no space left on device") {
		t.Fatalf("%d objects, then %q; want some, then that there is no space", acknowledged, refusal)
	}
	disk.fill(t, 0)
	before, _ := disk.renewed()
	kill()
	disk.fill(t, 0)

	kill = disk.start(t, up...)
	disk.back(t, before)
	disk.answers(t, "hello")
	if out := kill(); !strings.Contains(out, "is full, and new objects are refused") {
		t.Errorf("the start does not say that the disk is full:\n%s", out)
	}
	before, _ = disk.renewed()
	kill = disk.start(t, up...) // once more, by what is left of the reserve
	disk.back(t, before)
	disk.answers(t, "hello")
	for i := range acknowledged {
		disk.run(t, "get", "configmap", fmt.Sprintf("full-%d", i), "-o", "name")
	}
	if out, err := disk.kubectl("create", "configmap", "late"); err == nil {
		t.Errorf("a new object on a full disk: %s, want a refusal", out)
	}
	disk.run(t, "delete", "configmap", "full-0")
	kill()
}

// TestNodeKilledOnAFullDisk: a joined node without a server is killed while its disk is full, and starts again; it
// takes pods.
func TestNodeKilledOnAFullDisk(t *testing.T) {
	node := newDisk(t)
	server := filepath.Join(t.TempDir(), "server")
	background(t, exec.Command(node.bin, "up", "--port", "0", "--node-name", "server", "--data-dir", server,
		"--eviction-hard", "memory.available<1Mi"))
	t.Cleanup(func() {
		if out, err := exec.Command(node.bin, "down", "--data-dir", server).CombinedOutput(); err != nil {
			t.Errorf("keelson down: %v\n%s", err, out)
		}
	})
	node.kubeconfig = server + "/kubeconfig"
	node.until(t, "the server is ready", func() bool {
		out, err := node.kubectl("get", "node", "server")
		return err == nil && strings.Contains(out, " Ready ")
	})
	address, err := node.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
	if err != nil {
		t.Fatalf("%v\n%s", err, address)
	}
	join, err := exec.Command(node.bin, "token", "create", "--print-join-command", "--data-dir", server, "--server",
		address).CombinedOutput()
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, join)
	}
	kill := node.start(t, append(strings.Fields(string(join))[1:], "--node-name", "small")...)
	node.until(t, "the node is Ready", func() bool {
		_, ready := node.renewed()
		return ready
	})
	node.pod(t, "hello")
	node.fill(t, 0)
	before, _ := node.renewed()
	kill()
	node.fill(t, 0)
	kill = node.start(t, "kubelet")
	node.back(t, before)
	node.pod(t, "second")
	if out := kill(); !strings.Contains(out, "the disk is full: this start uses its reserve") {
		t.Errorf("the start does not say that the disk is full:\n%s", out)
	}
}
