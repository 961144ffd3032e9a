// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/maintenance"
	"keelson/store"
	"keelson/store/backup"
)

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
