// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster"
	"keelson/cluster/datadir"
	"keelson/lib/waittest"
)

// controlPlane runs a cluster without a node until the test ends.
func controlPlane(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	cs, err := kubernetes.NewForConfig(controlPlaneOf(t, func(*cluster.Config) {}))
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// controlPlaneOf is controlPlane with a configuration that edit has changed; it returns the administrator's access.
func controlPlaneOf(t *testing.T, edit func(*cluster.Config)) *rest.Config {
	t.Helper()
	cfg := cluster.Default()
	cfg.DataDir = datadir.Dir(t.TempDir())
	cfg.Port = 0
	cfg.NoNode = true
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}
	edit(&cfg)
	c, err := cluster.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, func() { close(ready) }) }() // ends with the test, which waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cluster ended with %v", err)
		}
		c.Close()
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("cluster did not start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("cluster was not ready within a minute")
	}
	access, err := clientcmd.BuildConfigFromFlags("", c.DataDir().Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	access.QPS = -1
	return access
}

func hard(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func wantUsed(t *testing.T, c kubernetes.Interface, name string, want corev1.ResourceList) {
	t.Helper()
	waittest.Right(t, "usage of quota "+name, func() string {
		q, err := c.CoreV1().ResourceQuotas("dev").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for k, v := range want {
			if got := q.Status.Used[k]; got.Cmp(v) != 0 || q.Status.Hard == nil {
				return fmt.Sprintf("%s is %s, want %s", k, got.String(), v.String())
			}
		}
		return ""
	})
}

func makeQuota(t *testing.T, c kubernetes.Interface, name string, limits corev1.ResourceList) {
	t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: limits}}
	if _, err := c.CoreV1().ResourceQuotas("dev").Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "dev"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "hello"}}},
	}
}

// TestQuota: 64 clients create 200 pods against a quota of 50 while others count config maps, secrets and leases.
func TestQuota(t *testing.T) {
	clientset := controlPlane(t)
	ctx := t.Context()
	if _, err := clientset.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "root certificate in the new namespace", func() string {
		if _, err := clientset.CoreV1().ConfigMaps("dev").Get(ctx, "kube-root-ca.crt",
			metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if _, err := clientset.CoreV1().ServiceAccounts("dev").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	makeQuota(t, clientset, "pods", hard("pods", "50"))
	makeQuota(t, clientset, "things", hard("configmaps", "2", "count/leases.coordination.k8s.io", "1",
		"services.nodeports",
		"1", "count/serviceaccounts", "5"))
	wantUsed(t, clientset, "pods", hard("pods", "0"))
	wantUsed(t, clientset, "things", hard("configmaps", "1", "count/leases.coordination.k8s.io", "0",
		"services.nodeports",
		"0", "count/serviceaccounts", "1"))

	var made, refused, next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > 200 {
					return
				}
				_, err := clientset.CoreV1().Pods("dev").Create(ctx, newPod(fmt.Sprint("p", n)), metav1.CreateOptions{})
				var netErr net.Error
				switch {
				case err == nil:
					made.Add(1)
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(),
					"exceeded quota: pods, requested: pods=1, used: pods=50, limited: pods=50"):
					refused.Add(1)
				case errors.As(err, &netErr):
					t.Errorf("pod %d: no answer: %v", n, err)
				default:
					t.Errorf("pod %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	if made.Load() != 50 || refused.Load() != 150 {
		t.Errorf("%d made and %d refused, want 50 and 150", made.Load(), refused.Load())
	}
	list, err := clientset.CoreV1().Pods("dev").List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 50 {
		t.Errorf("%d pods exist, want 50 (%v)", len(list.Items), err)
	}
	wantUsed(t, clientset, "pods", hard("pods", "50"))

	// What goes is given back.
	zero := int64(0)
	for _, p := range list.Items[:10] {
		if err := clientset.CoreV1().Pods("dev").Delete(ctx, p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
			t.Fatal(err)
		}
	}
	wantUsed(t, clientset, "pods", hard("pods", "40"))

	maps := clientset.CoreV1().ConfigMaps("dev")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
	want := `configmaps "b" is forbidden: exceeded quota: things, requested: configmaps=1, used: configmaps=2, limited: configmaps=2`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("third config map: got %v, want %s", err, want)
	}
	// A name that is taken costs nothing.
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, clientset, "things", hard("configmaps", "1"))
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}},
		metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a taken name: got %v", err)
	}
	q, err := clientset.CoreV1().ResourceQuotas("dev").Get(ctx, "things", metav1.GetOptions{})
	if used := q.Status.Used["configmaps"]; err != nil || used.Value() != 1 {
		t.Errorf("after a creation that failed: used %s, want 1 (%v)", used.String(), err)
	}
}
