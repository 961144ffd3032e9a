// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dataAttacks are what happens to the directory of a cluster that does not run.
var dataAttacks = []attack{
	{name: "log-of-writes-removed", run: func(t *testing.T, c *live) { attackWAL(t, c, os.Remove) }},
	{
		name: "log-of-writes-truncated",
		run: func(t *testing.T, c *live) {
			attackWAL(t, c, func(file string) error {
				fi, err := os.Stat(file)
				if err != nil {
					return err
				}
				return os.Truncate(file, fi.Size()/2)
			})
		},
	},
	{name: "keys-removed", run: attackKeys},
	{name: "supervisor-program-damaged", run: attackShim},
	{name: "container-record-damaged", run: attackRecord},
}

// attackWAL stops the cluster cleanly and damages the newest write-ahead log. The next start has every object, or it
// refuses.
func attackWAL(t *testing.T, c *live, damage func(string) error) {
	var objects strings.Builder
	for i := range 300 {
		fmt.Fprintf(&objects, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d}\n---\n", i)
	}
	c.apply(t, objects.String())
	if out, err := c.keelson("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var logs []string
	err := filepath.WalkDir(filepath.Join(c.data, "store"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(path, ".log") {
			logs = append(logs, path)
		}
		return err
	})
	if err != nil || len(logs) == 0 {
		t.Fatalf("no write-ahead log: %v", err)
	}
	newest := slices.MaxFunc(logs, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	t.Log("damages", newest)
	if err := damage(newest); err != nil {
		t.Fatal(err)
	}
	out, err := c.keelson("up", "--detach", "--port", "0")
	if err != nil {
		if !strings.Contains(out, "--accept-data-loss") {
			t.Errorf("refused in other words: %s", out)
		}
		if out, err := c.keelson("up", "--detach", "--port", "0", "--accept-data-loss"); err != nil {
			t.Errorf("with --accept-data-loss: %v\n%s", err, out)
		}
		return
	}
	if n := strings.Count(c.must(t, "get", "configmaps", "-o", "name"), "/c"); n != 300 {
		t.Errorf("started with %d of 300 objects and without a word: %s", n, out)
	}
}

// attackKeys removes each key that clients or tokens depend on.
func attackKeys(t *testing.T, c *live) {
	if out, err := c.keelson("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"ca.key", "sa.key", "ca.crt"} {
		var file string
		err := filepath.WalkDir(c.data, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == name {
				file = path
			}
			return err
		})
		if err != nil || file == "" {
			t.Fatalf("no %s: %v", name, err)
		}
		content := readHost(t, file)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		out, err := c.keelson("up", "--detach", "--port", "0")
		if err == nil || !strings.Contains(out, name) {
			t.Errorf("without %s: %v, %s; want a refusal that names it", name, err, out)
			if err == nil {
				return
			}
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.start(t)
}

// attackShim damages the supervisor's program between two starts.
func attackShim(t *testing.T, c *live) {
	if out, err := c.keelson("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := false
	err := filepath.WalkDir(c.data, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasPrefix(d.Name(), "keelson-shim") {
			if fi, err := d.Info(); err == nil && fi.Mode()&0o100 != 0 {
				found = true
				return os.Truncate(path, fi.Size()/2)
			}
		}
		return err
	})
	if err != nil || !found {
		t.Fatalf("no program of the supervisor: %v", err)
	}
	c.start(t)
	c.must(t, "run", "after", "--image=keelson.local/hello")
	c.must(t, "wait", "--for=condition=Ready", "pod/after", "--timeout=60s")
}

// attackRecord damages the record of a running container while the cluster is down after a crash. The container goes
// on.
func attackRecord(t *testing.T, c *live) {
	c.must(t, "run", "web", "--image=keelson.local/hello")
	c.must(t, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	id := c.must(t, "get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	c.kill(t)
	var records []string
	_ = filepath.WalkDir(c.data, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "container.json" {
			records = append(records, path)
		}
		return nil
	})
	if len(records) == 0 {
		t.Fatal("no container.json")
	}
	for _, r := range records {
		if err := os.WriteFile(r, []byte(`{"half`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.start(t)
	c.must(t, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	if now := c.must(t, "get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}"); now != id {
		t.Errorf("container %s runs, want %s to go on", now, id)
	}
}
