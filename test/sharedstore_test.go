// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// up is `keelson up` on a machine, with the keys of s1.
func (f *failover) up(t *testing.T, name string, flags ...string) *exec.Cmd {
	t.Helper()
	if name != "s1" {
		if err := os.CopyFS(f.data(name)+"/pki", os.DirFS(f.data("s1")+"/pki")); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		f.bin, "up", "--data-dir", f.data(name), "--etcd-servers", f.etcd, "--bind-address", address(name),
		"--port", "6443", "--eviction-hard", "memory.available<1Mi",
	}
	t.Cleanup(func() {
		if !exists(f.data(name) + "/keelson.pid") {
			return // it was refused
		}
		if out, err := f.inside(name, f.bin, "down", "--purge", "--yes", "--data-dir",
			f.data(name)).CombinedOutput(); err != nil {
			t.Errorf("keelson down on %s: %v\n%s", name, err, out)
		}
	})
	return f.inside(name, append(args, flags...)...)
}

// TestServersThatDiffer: a second server on an etcd that would break the cluster is refused in a sentence, and leaves
// nothing: with another range of Services, another domain, or the name of a node that runs. One that fits starts.
func TestServersThatDiffer(t *testing.T) {
	f := newFailover(t)
	background(t, f.up(t, "s1", "--node-name", "one"))
	f.until(t, "the first node is Ready", func() bool {
		return strings.Contains(f.kubectl("s1", "get", "node", "one"), " Ready ")
	})
	type refusal struct {
		machine, want string
		out           []byte
		err           error
	}
	done := make(chan refusal, 3)
	for machine, c := range map[string]struct {
		flags []string
		want  string
	}{
		"s2": {
			[]string{"--node-name", "two", "--service-cluster-ip-range", "10.77.0.0/16"},
			"start with --service-cluster-ip-range=10.96.0.0/16",
		},
		"s3": {
			[]string{"--node-name", "three", "--cluster-domain", "other.test"},
			"start with --cluster-domain=cluster.local",
		},
		"n1": {
			[]string{"--node-name", "one"},
			"the node one runs elsewhere",
		},
	} {
		cmd := f.up(t, machine, c.flags...)
		go func() { // ends with the command, which is refused or killed with its machine
			out, err := cmd.CombinedOutput()
			done <- refusal{machine, c.want, out, err}
		}()
	}
	for range 3 {
		r := <-done
		if r.err == nil || !strings.Contains(string(r.out), r.want) {
			t.Errorf("%s: %v, want a refusal with %q:\n%s", r.machine, r.err, r.want, r.out)
		}
		left, err := os.ReadDir(f.data(r.machine))
		if err != nil || len(left) != 1 || left[0].Name() != "pki" {
			t.Errorf("%s: the directory holds %v, %v; want pki alone", r.machine, left, err)
		}
	}
	background(t, f.up(t, "n2", "--node-name", "two"))
	f.until(t, "the second node is Ready", func() bool {
		return strings.Contains(f.kubectl("s1", "get", "node", "two"), " Ready ")
	})
	if got := f.kubectl("s1", "get", "nodes", "-o", "name"); got != "node/one\nnode/two\n" {
		t.Errorf("nodes: %q", got)
	}
}
