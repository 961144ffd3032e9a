// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"keelson/kubelet/pod"
	"keelson/kubelet/runtimestate"
)

// TestRemoveOrphanLogs: log directories go whose pods are gone, and pods of which only the directory of volumes is left
// get their names back, so that their workers find the logs.
func TestRemoveOrphanLogs(t *testing.T) {
	dir := t.TempDir()
	table := newWorkers()
	table.byUID["uid-runs"] = &pod.Worker{}
	pods := &podSync{
		Kubelet: &Kubelet{
			cfg:     Config{LogDir: dir, Log: slog.New(slog.DiscardHandler)},
			workers: table,
		},
	}
	for _, name := range []string{
		"ns_gone_uid-gone", "ns_runs_uid-runs", "ns_half_uid-half", "ns_boxed_uid-boxed", "lost+found", "a_b_c_d",
	} {
		if err := os.MkdirAll(filepath.Join(dir, name, "c"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	known := map[string]*runtimestate.Pod{
		"uid-half":  {UID: "uid-half"},
		"uid-boxed": {UID: "uid-boxed", Namespace: "n", Name: "p"},
	}
	pods.removeOrphanLogs(known)
	for name, want := range map[string]bool{
		"ns_gone_uid-gone":   false,
		"ns_runs_uid-runs":   true,
		"ns_half_uid-half":   true,
		"ns_boxed_uid-boxed": true,
		"lost+found":         true,
		"a_b_c_d":            true,
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: got %v, want it there: %v", name, err, want)
		}
	}
	if o := known["uid-half"]; o.Namespace != "ns" || o.Name != "half" {
		t.Errorf("pod without a sandbox: got %s/%s, want ns/half", o.Namespace, o.Name)
	}
	if o := known["uid-boxed"]; o.Namespace != "n" || o.Name != "p" {
		t.Errorf("pod with a sandbox: got %s/%s, want its own name", o.Namespace, o.Name)
	}
}
