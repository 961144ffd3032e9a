// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/clustertest"
)

// TestNamespaceGoes: garbage collector and namespaces work, in real time and in a bubble, twice.
func TestNamespaceGoes(t *testing.T) {
	t.Run("real time", func(t *testing.T) { namespaceGoes(t, clustertest.Start(t, clustertest.Config{})) })
	for range 2 { // nothing of a bubble is left for the next one
		t.Run("bubble", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { namespaceGoes(t, clustertest.Start(t, clustertest.Config{})) })
		})
	}
}

func namespaceGoes(t *testing.T, cluster *clustertest.Cluster) {
	t.Helper()
	ctx := t.Context()
	if _, err := cluster.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	owner, err := cluster.CoreV1().ConfigMaps("x").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.CoreV1().ConfigMaps("x").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "owned",
		OwnerReferences: []metav1.OwnerReference{
			{
				APIVersion: "v1",
				Kind:       "ConfigMap",
				Name:       owner.Name,
				UID:        owner.UID,
			},
		},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.CoreV1().ConfigMaps("x").Delete(ctx, owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	clustertest.Eventually(t, "what it owned is gone", time.Minute, func() (bool, error) {
		_, err := cluster.CoreV1().ConfigMaps("x").Get(ctx, "owned", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err := cluster.CoreV1().Namespaces().Delete(ctx, "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	clustertest.Eventually(t, "the namespace is gone", time.Minute, func() (bool, error) {
		_, err := cluster.CoreV1().Namespaces().Get(ctx, "x", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer, minimum: 1}}}}
`

// TestCRDs: definitions from files are served, with their rules, when Start returns.
func TestCRDs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "widgets.yaml"), []byte(widgets), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := clustertest.Start(t, clustertest.Config{CRDs: []string{dir}})
		all := c.Dynamic.Resource(schema.GroupVersionResource{
			Group:    "example.com",
			Version:  "v1",
			Resource: "widgets",
		}).Namespace("default")
		widget := func(size int64) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1",
				"kind":       "Widget",
				"metadata":   map[string]any{"name": "w"},
				"spec":       map[string]any{"size": size},
			}}
		}
		if _, err := all.Create(t.Context(), widget(0), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("a widget of size 0: %v, want that it is invalid", err)
		}
		if _, err := all.Create(t.Context(), widget(3), metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestUsers: what users may do is what RBAC says, as another user and by impersonation.
func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := clustertest.Start(t, clustertest.Config{})
		ctx := t.Context()
		jane := cluster.As("jane", "devs")
		if _, err := jane.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("jane lists: %v, want forbidden", err)
		}
		if _, err := cluster.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "devs"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "devs"}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		clustertest.Eventually(t, "jane may list", time.Second, func() (bool, error) {
			_, err := jane.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
			return err == nil, err
		})
		cfg := cluster.RESTConfig()
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "joe"}
		if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps("default").List(ctx,
			metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("joe lists: %v, want forbidden", err)
		}
	})
}

// TestHTTPS: a program that knows a kubeconfig alone reaches the cluster.
func TestHTTPS(t *testing.T) {
	c := clustertest.Start(t, clustertest.Config{HTTPS: true})
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for what, cfg := range map[string]*rest.Config{"kubeconfig": cfg, "config": c.RESTConfig()} {
		if !strings.HasPrefix(cfg.Host, "https://127.0.0.1:") {
			t.Errorf("%s leads to %s", what, cfg.Host)
		}
		if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces().Get(t.Context(), "default",
			metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestKilledServer: what the API server has acknowledged is there after it was killed; meanwhile its clients see
// errors.
func TestKilledServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := clustertest.Start(t, clustertest.Config{})
		ctx := t.Context()
		maps := cluster.CoreV1().ConfigMaps("default")
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := cluster.Kill(clustertest.APIServer); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Get(ctx, "m", metav1.GetOptions{}); err == nil {
			t.Error("a dead server answers")
		}
		if err := cluster.Restart(clustertest.APIServer); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Get(ctx, "m", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		namespaceGoes(t, cluster) // the controllers have found the new server
	})
}

// TestNothingStays: 20 clusters at once, in real time, leave no goroutine.
func TestNothingStays(t *testing.T) {
	ours := func() (n int) {
		buf := make([]byte, 8<<20)
		for s := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(s, "keelson/") && !strings.Contains(s, "testing.tRunner") {
				n++
			}
		}
		return n
	}
	before := ours()
	t.Run("all", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				c := clustertest.Start(t, clustertest.Config{})
				if _, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	clustertest.Eventually(t, "all goroutines have ended", 30*time.Second, func() (bool, error) {
		return ours() <= before, nil
	})
}

// BenchmarkStart: go test -run '^$' -bench Start ./cluster/clustertest/
func BenchmarkStart(b *testing.B) {
	for name, cfg := range map[string]clustertest.Config{
		"essential":                {},
		"all controllers, 3 nodes": {Controllers: []string{"*"}, Nodes: 3},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c := clustertest.Start(b, cfg)
				b.StopTimer()
				if err := c.Stop(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkFifty has 50 clusters at once and says how much memory each takes.
func BenchmarkFifty(b *testing.B) {
	for b.Loop() {
		before := heap()
		all := make([]*clustertest.Cluster, 50)
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() { all[i] = clustertest.Start(b, clustertest.Config{}) })
		}
		wg.Wait()
		b.ReportMetric(float64(heap()-before)/50/(1<<20), "MB/cluster")
		for _, c := range all {
			if err := c.Stop(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// heap is what lives, with stacks.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
