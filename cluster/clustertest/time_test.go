// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster/clustertest"
)

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "x"}},
				},
			},
		},
	}
}

// TestNodeLoss: a silent node is Unknown after its grace period, its pods are deleted 300 s later and replaced on
// another node; when it comes back its old pods go.
func TestNodeLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := clustertest.Start(t, clustertest.Config{Controllers: []string{"*"}, Nodes: 2})
		ctx := t.Context()
		if _, err := cluster.AppsV1().Deployments("default").Create(ctx, deployment("web", 2),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pods := func() []corev1.Pod {
			l, err := cluster.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				t.Fatal(err)
			}
			return l.Items
		}
		running := func(want int, off string) func() (bool, error) {
			return func() (bool, error) {
				n := 0
				for _, p := range pods() {
					if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && p.Spec.NodeName != off {
						n++
					}
				}
				return n == want, nil
			}
		}
		clustertest.Eventually(t, "two pods run", time.Minute, running(2, ""))
		lost := pods()[0].Spec.NodeName
		begin := time.Now()
		if err := cluster.SilenceNode(ctx, lost); err != nil {
			t.Fatal(err)
		}
		ready := func() corev1.ConditionStatus {
			n, err := cluster.CoreV1().Nodes().Get(ctx, lost, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady {
					return cond.Status
				}
			}
			return ""
		}
		clustertest.Eventually(t, "the node is Unknown", 2*time.Minute, func() (bool, error) {
			return ready() == corev1.ConditionUnknown, nil
		})
		if took := time.Since(begin); took < 30*time.Second || took > 55*time.Second {
			t.Errorf("Unknown after %s, want 40 s to 50 s", took)
		}
		unknown := time.Now()
		clustertest.Eventually(t, "its pods are replaced", 10*time.Minute, running(2, lost))
		if took := time.Since(unknown); took < 299*time.Second || took > 310*time.Second {
			t.Errorf("replaced %s after the node was Unknown, want 300 s", took)
		}
		for _, p := range pods() {
			if p.Spec.NodeName == lost && p.DeletionTimestamp == nil {
				t.Errorf("pod %s is still wanted on the lost node", p.Name)
			}
		}
		if err := cluster.WakeNode(ctx, lost); err != nil {
			t.Fatal(err)
		}
		clustertest.Eventually(t, "the old pods are gone", time.Minute, func() (bool, error) {
			return len(pods()) == 2,
				nil
		})
		clustertest.Eventually(t, "the node is Ready and without taints", time.Minute, func() (bool, error) {
			n, err := cluster.CoreV1().Nodes().Get(ctx, lost, metav1.GetOptions{})
			return err == nil && ready() == corev1.ConditionTrue && len(n.Spec.Taints) == 0, err
		})
	})
}

// TestProgressDeadline: a rollout that cannot progress says so after its deadline, not before.
func TestProgressDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := clustertest.Start(t, clustertest.Config{Controllers: []string{"*"}, Scheduler: true})
		ctx := t.Context()
		d := deployment("stuck", 1)
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"),
		}
		if _, err := cluster.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		clustertest.Eventually(t, "the deadline is exceeded", time.Hour, func() (bool, error) {
			got, err := cluster.AppsV1().Deployments("default").Get(ctx, "stuck", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, cond := range got.Status.Conditions {
				if cond.Type == appsv1.DeploymentProgressing && cond.Reason == "ProgressDeadlineExceeded" {
					return cond.Status == corev1.ConditionFalse, nil
				}
			}
			return false, nil
		})
		if took := time.Since(begin); took < 600*time.Second || took > 605*time.Second {
			t.Errorf("exceeded after %s, want the default of 600 s", took)
		}
	})
}
