// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/store"
	"keelson/store/backup"
)

// left are the names in the directory that holds dir.
func left(t *testing.T, dir datadir.Dir) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestDownOfRestored: what was restored and never started can be deleted, and only when that is asked for. A directory
// that only looks like it is left alone.
func TestDownOfRestored(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup")
	var stream bytes.Buffer
	w := backup.NewWriter(&stream)
	err := w.KV(store.KV{Key: "/registry/configmaps/a/b", Value: []byte("x"), Revision: 3})
	if _, end := w.Close(4); err != nil || end != nil {
		t.Fatal(err, end)
	}
	if _, err := maintenance.SaveBackup("", &stream, file); err != nil {
		t.Fatal(err)
	}
	quiet := func(string, time.Duration) {}
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	if _, err := maintenance.Restore(t.Context(), dir, file); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir, false, quiet); err == nil ||
		!strings.Contains(err.Error(), "restored, and never started") {
		t.Errorf("down: %v; want that it never started", err)
	}
	if got := left(t, dir); got != "data" {
		t.Errorf("down left %q", got)
	}
	for _, change := range []struct{ make, drop string }{{make: "letters"}, {drop: "store/clean-stop"}} {
		other := datadir.Dir(filepath.Join(t.TempDir(), "data"))
		if _, err := maintenance.Restore(t.Context(), other, file); err != nil {
			t.Fatal(err)
		}
		if change.make != "" {
			if err := os.WriteFile(other.Sub(change.make), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if change.drop != "" {
			if err := os.Remove(other.Sub(change.drop)); err != nil {
				t.Fatal(err)
			}
		}
		if err := Down(t.Context(), other, true, quiet); err == nil ||
			!strings.Contains(err.Error(), "is not a cluster's data directory") || !datadir.Exists(other.Sub("store")) {
			t.Errorf("%+v: %v; want it left as it is", change, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("what is in the kernel is taken away by root only")
	}
	if err := Down(t.Context(), dir, true, quiet); err != nil {
		t.Fatal(err)
	}
	if got := left(t, dir); got != "" {
		t.Errorf("down --purge left %q", got)
	}
}

// TestBackupWhileWriting: a backup of a running cluster is one moment of it, whatever is written meanwhile.
func TestBackupWhileWriting(t *testing.T) {
	c, kube := serve(t, func(*Config) {})
	cfg, err := clientcmd.BuildConfigFromFlags("", c.DataDir().Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// One writer counts up two objects, a before b: at every moment a is equal to b or one ahead.
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	maps := kube.CoreV1().ConfigMaps("default")
	for _, name := range []string{"a", "b"} {
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			patch := fmt.Appendf(nil, `{"data":{"n":"n%06d"}}`, i)
			for _, name := range []string{"a", "b"} {
				if _, err := maps.Patch(ctx, name, "application/merge-patch+json", patch,
					metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range 10 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+maintenance.BackupPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{"a": -1, "b": -1}
		_, err = backup.Read(resp.Body, backup.Sink{KV: func(kv store.KV) error {
			name := strings.TrimPrefix(kv.Key, "/registry/configmaps/default/")
			if _, ok := n[name]; !ok {
				return nil
			}
			if at := bytes.Index(kv.Value, []byte("n0")); at >= 0 {
				var v int
				if _, err := fmt.Sscanf(string(kv.Value[at:at+7]), "n%06d", &v); err != nil {
					return err
				}
				n[name] = v
			}
			return nil
		}})
		_ = resp.Body.Close()
		if err != nil {
			t.Fatalf("backup %d: %v", i, err)
		}
		if n["a"] != n["b"] && n["a"] != n["b"]+1 {
			t.Errorf("backup %d holds a=%d and b=%d: not one moment", i, n["a"], n["b"])
		}
	}
}
