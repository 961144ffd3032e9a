// SPDX-License-Identifier: Apache-2.0

package ttl

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

func TestNext(t *testing.T) {
	for _, tc := range []struct{ step, n, want int }{
		{0, 100, 0}, {0, 101, 1}, {1, 90, 1}, {1, 89, 0}, {0, 5000, 4}, {4, 1800, 4}, {4, 1799, 3}, {4, 0, 0},
	} {
		if got := nextStep(tc.step, tc.n); got != tc.want {
			t.Errorf("step %d with %d nodes: got %d, want %d", tc.step, tc.n, got, tc.want)
		}
	}
}

func TestAnnotates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n0", Annotations: map[string]string{"other": "x"}},
		})
		cluster.Start(t, "ttl-controller", New)
		check := func(when, name, want string) {
			t.Helper()
			time.Sleep(time.Second)
			n, err := cluster.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || n.Annotations[corev1.ObjectTTLAnnotationKey] != want {
				t.Errorf("%s: %v %v, want %s", when, n.Annotations, err, want)
			}
		}
		check("one node", "n0", "0")
		for i := range 100 {
			if _, err := cluster.CoreV1().Nodes().Create(t.Context(),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("more%d", i)}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		check("the hundred and first", "more99", "15")
		n, err := cluster.CoreV1().Nodes().Get(t.Context(), "n0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Labels = map[string]string{"changed": "yes"}
		if _, err := cluster.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("the first, once it changes", "n0", "15")
		if n, _ = cluster.CoreV1().Nodes().Get(t.Context(), "n0", metav1.GetOptions{}); n.Annotations["other"] != "x" {
			t.Errorf("another annotation is gone: %v", n.Annotations)
		}
	})
}
