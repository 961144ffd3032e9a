// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster/clustertest"
	"keelson/event"
)

// TestSetsSayWhyTheyReplace: the passes of a StatefulSet and of a DaemonSet that delete pods of an earlier template say
// so, because such a set has as many pods as it wants.
func TestSetsSayWhyTheyReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		said := map[string]bool{}
		cluster := clustertest.Start(t, clustertest.Config{
			Controllers: []string{"*"},
			Nodes:       1,
			Marks: []event.Listener{func(e event.Event) {
				if detail, ok := e.Detail.(*event.Reconcile); ok && detail.Because != "" {
					mu.Lock()
					defer mu.Unlock()
					said[fmt.Sprint(e.Subject.Resource, " ", detail.Wants, " ", detail.Has, " ", detail.Because)] = true
				}
			}},
		})
		ctx := t.Context()
		labels := map[string]string{"app": "a"}
		template := corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/a:1"}}},
		}
		selector := &metav1.LabelSelector{MatchLabels: labels}
		stateful := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"},
			Spec:       appsv1.StatefulSetSpec{Selector: selector, Template: template},
		}
		daemon := &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "default"},
			Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: template},
		}
		must(t)(cluster.AppsV1().StatefulSets("default").Create(ctx, stateful, metav1.CreateOptions{}))
		must(t)(cluster.AppsV1().DaemonSets("default").Create(ctx, daemon, metav1.CreateOptions{}))
		clustertest.Eventually(t, "both pods are available", time.Minute, func() (bool, error) {
			s, err := cluster.AppsV1().StatefulSets("default").Get(ctx, "s", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			d, err := cluster.AppsV1().DaemonSets("default").Get(ctx, "d", metav1.GetOptions{})
			return s.Status.AvailableReplicas == 1 && d.Status.NumberAvailable == 1, err
		})
		next := []byte(`{"spec":{"template":{"metadata":{"annotations":{"next":"yes"}}}}}`)
		must(t)(cluster.AppsV1().StatefulSets("default").Patch(ctx, "s", "application/merge-patch+json", next,
			metav1.PatchOptions{}))
		must(t)(cluster.AppsV1().DaemonSets("default").Patch(ctx, "d", "application/merge-patch+json", next,
			metav1.PatchOptions{}))
		clustertest.Eventually(t, "both say why they delete their pod", time.Minute, func() (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return said["statefulsets 1 1 1 of an earlier template"] && said["daemonsets 1 1 1 of an earlier template"], nil
		})
	})
}
