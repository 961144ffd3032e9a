// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/cluster/clustertest"
)

// labelNamespaces is a controller that somebody wants to test: it labels every namespace with the day it is seen on.
func labelNamespaces(ctx context.Context, cs kubernetes.Interface) error {
	w, err := cs.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for ev := range w.ResultChan() {
		ns, ok := ev.Object.(*corev1.Namespace)
		if !ok || ns.Labels["seen"] != "" {
			continue
		}
		patch := []byte(`{"metadata":{"labels":{"seen":"` + time.Now().UTC().Format("2006-01-02") + `"}}}`)
		if _, err := cs.CoreV1().Namespaces().Patch(ctx, ns.Name, "application/merge-patch+json", patch,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// A controller's test: start a cluster, start the controller, act as a user, look at the result. In the bubble the
// clock stands still while anything is to be done, so that the test neither sleeps nor flakes.
func Example() {
	test := func(t *testing.T) { // TestLabelNamespaces in your package
		synctest.Test(t, func(t *testing.T) {
			cluster := clustertest.Start(t, clustertest.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { // ends with ctx
				if err := labelNamespaces(ctx, cluster); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}()
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
			if _, err := cluster.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			clustertest.Eventually(t, "the namespace has its label", time.Minute, func() (bool, error) {
				got, err := cluster.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
				return err == nil && got.Labels["seen"] == "2000-01-01", err // where every bubble begins
			})
		})
	}
	exampleTest = test
	// Output:
}

// exampleTest lets TestExample run what Example shows.
var exampleTest func(t *testing.T)

func TestExample(t *testing.T) {
	Example()
	exampleTest(t)
}

// Pods run on nodes that run nothing: a moment after they are bound they are Running.
func ExampleStart_nodes() {
	_ = func(t *testing.T) {
		c := clustertest.Start(t, clustertest.Config{Controllers: []string{"*"}, Nodes: 3})
		// 40 s later it is NotReady, and 300 s after that its pods are replaced
		_ = c.SilenceNode(t.Context(), "node-1")
	}
	// Output:
}

// Programs that need a kubeconfig are given one by a cluster that serves HTTPS on a loopback port.
func ExampleCluster_Kubeconfig() {
	_ = func(t *testing.T) {
		c := clustertest.Start(t, clustertest.Config{HTTPS: true, CRDs: []string{"config/crd/bases"}})
		t.Setenv("KUBECONFIG", c.Kubeconfig(t))
	}
	// Output:
}
