// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// filesWith returns the files below dir, on the same file system, that contain the text.
func filesWith(t *testing.T, dir, text string) []string {
	t.Helper()
	var device unix.Stat_t
	if err := unix.Stat(dir, &device); err != nil {
		t.Fatal(err)
	}
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || !d.Type().IsRegular() || unix.Stat(path, &st) != nil || st.Dev != device.Dev {
			return nil //nolint:nilerr // files come and go
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(text)) {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEnvironmentIsNotOnDisk: neither environment nor arguments of a container are readable on disk; the container
// and its execs have them, also after a restart of the runtime.
func TestEnvironmentIsNotOnDisk(t *testing.T) {
	node := newNode(t)
	cfg := node.mappedPod("pod", hostRoot)
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = nil
	pod := node.runPod(cfg)
	c := mappedContainer(cfg, "c", "echo argument-secret >/dev/null; echo $TOKEN; sleep 1000")
	c.Envs = []*runtimeapi.KeyValue{{Key: "TOKEN", Value: []byte("environment-secret")}}
	id, err := node.create(pod, cfg, c)
	if err != nil {
		t.Fatal(err)
	}
	node.stop()
	node.start()
	if _, err := node.c.Runtime.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	node.stop()
	node.start()
	if got := node.sh(id, "echo $TOKEN"); got != "environment-secret\n" {
		t.Errorf("an exec has the environment %q", got)
	}
	for _, secret := range []string{"argument-secret", "environment-secret"} {
		for _, file := range filesWith(t, node.cfg.Dir, secret) {
			if !strings.HasSuffix(file, ".log") { // what the container prints is its own affair
				t.Errorf("%s is in %s", secret, file)
			}
		}
	}
}

// TestSpecOfEarlierVersion: a running container of a version that wrote its spec in clear keeps its execs, and the
// file goes.
func TestSpecOfEarlierVersion(t *testing.T) {
	node := newNode(t)
	_, id := node.run("old")
	st, err := node.c.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{
		ContainerId: id,
		Verbose:     true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		RuntimeSpec json.RawMessage `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(st.GetInfo()["info"]), &info); err != nil {
		t.Fatal(err)
	}
	node.stop()
	dir := filepath.Join(node.cfg.Dir, "containers", id)
	if err := os.Remove(filepath.Join(dir, "spec.sealed")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "spec.json"), info.RuntimeSpec, 0o600); err != nil {
		t.Fatal(err)
	}
	node.start()
	node.wantAlive(id)
	if _, err := os.Stat(filepath.Join(dir, "spec.json")); !os.IsNotExist(err) {
		t.Errorf("spec.json: %v, want that it is gone", err)
	}
}
