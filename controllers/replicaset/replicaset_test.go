// SPDX-License-Identifier: Apache-2.0

package replicaset_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/replicaset"
)

func newSet(replicas int32) *appsv1.ReplicaSet {
	l := map[string]string{"app": "my-app"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "my-replicaset", Namespace: "default"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "my-container", Image: "i"}}},
			},
		},
	}
}

func pods(t *testing.T, c *controllertest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func get(t *testing.T, c *controllertest.Cluster) *appsv1.ReplicaSet {
	t.Helper()
	rs, err := c.AppsV1().ReplicaSets("default").Get(t.Context(), "my-replicaset", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func TestCreatesReplacesAndScalesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet(3))
		cluster.Start(t, "replicaset-controller", replicaset.New)
		time.Sleep(time.Second) // the bubble's clock: until nothing moves
		got := pods(t, cluster)
		if len(got) != 3 {
			t.Fatalf("pods: got %d, want 3", len(got))
		}
		ref := metav1.GetControllerOf(&got[0])
		if ref == nil || ref.Kind != "ReplicaSet" || ref.APIVersion != "apps/v1" || ref.BlockOwnerDeletion == nil ||
			!*ref.BlockOwnerDeletion {
			t.Errorf("owner reference: got %+v", ref)
		}
		if !strings.HasPrefix(got[0].Name, "my-replicaset-") {
			t.Errorf("name: got %q", got[0].Name)
		}
		if st := get(t, cluster).Status; st.Replicas != 3 || st.FullyLabeledReplicas != 3 || st.ReadyReplicas != 0 {
			t.Errorf("status: got %+v", st)
		}
		if said := cluster.EventsSeen(); len(said) != 3 ||
			!strings.HasPrefix(said[0], "Normal SuccessfulCreate Created pod: my-replicaset-") {
			t.Errorf("events: got %q", said)
		}
		if err := cluster.CoreV1().Pods("default").Delete(t.Context(), got[0].Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := len(pods(t, cluster)); n != 3 {
			t.Errorf("after a deletion: got %d pods, want 3", n)
		}
		cluster.EventsSeen()
		rs := get(t, cluster)
		one := int32(1)
		rs.Spec.Replicas = &one
		if _, err := cluster.AppsV1().ReplicaSets("default").Update(t.Context(), rs,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := len(pods(t, cluster)); n != 1 {
			t.Errorf("after scaling down: got %d pods, want 1", n)
		}
		if said := cluster.EventsSeen(); len(said) != 2 ||
			!strings.HasPrefix(said[0], "Normal SuccessfulDelete Deleted pod: ") {
			t.Errorf("events: got %q", said)
		}
		if n := get(t, cluster).Status.Replicas; n != 1 {
			t.Errorf("status.replicas: got %d, want 1", n)
		}
	})
}

func TestAdoptsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name:      "orphan",
			Namespace: "default",
			Labels:    map[string]string{"app": "my-app"},
		}}
		cluster := controllertest.New(newSet(1), orphan)
		cluster.Start(t, "replicaset-controller", replicaset.New)
		time.Sleep(time.Second)
		got := pods(t, cluster)
		if len(got) != 1 || metav1.GetControllerOf(&got[0]) == nil {
			t.Fatalf("adoption: got %d pods, first owned by %v", len(got), metav1.GetControllerOf(&got[0]))
		}
		p := got[0].DeepCopy()
		p.Labels = map[string]string{"app": "debug"}
		if _, err := cluster.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		got = pods(t, cluster)
		i := slices.IndexFunc(got, func(p corev1.Pod) bool { return p.Name == "orphan" })
		if len(got) != 2 || i < 0 || metav1.GetControllerOf(&got[i]) != nil {
			t.Errorf("release: got %d pods, orphan owned by %v", len(got), got[i].OwnerReferences)
		}
	})
}

func TestFailureShowsAndClears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet(2))
		var repaired atomic.Bool
		var tries atomic.Int32
		cluster.Fake.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !repaired.Load() {
				tries.Add(1)
				return true, nil, errors.New("exceeded quota")
			}
			return false, nil, nil
		})
		cluster.Start(t, "replicaset-controller", replicaset.New)
		time.Sleep(time.Second)
		conds := get(t, cluster).Status.Conditions
		if len(conds) != 1 || conds[0].Reason != "FailedCreate" || conds[0].Message != "exceeded quota" {
			t.Errorf("conditions: got %+v", conds)
		}
		if n := tries.Load(); n > 20 {
			t.Errorf("%d tries in a second: no slow start or backoff", n)
		}
		if said := cluster.EventsSeen(); len(said) == 0 ||
			said[0] != "Warning FailedCreate Error creating: exceeded quota" {
			t.Errorf("events: got %q", said)
		}
		repaired.Store(true)
		time.Sleep(5 * time.Minute)
		if n, conds := len(pods(t, cluster)), get(t, cluster).Status.Conditions; n != 2 || len(conds) != 0 {
			t.Errorf("after the repair: got %d pods, conditions %v", n, conds)
		}
	})
}

// TestTerminatingNamespace: one refusal is enough; the controller tries none of the other 999, neither now nor later.
func TestTerminatingNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(newSet(1000))
		var tries atomic.Int32
		c.Fake.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries.Add(1)
			err := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("the namespace is being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return true, nil, err
		})
		c.Start(t, "replicaset-controller", replicaset.New)
		time.Sleep(time.Hour)
		if n := tries.Load(); n < 1 || n > 4 {
			t.Errorf("%d pods were tried in an hour, want one a pass", n)
		}
	})
}

func TestMinReadySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := newSet(1)
		rs.Spec.MinReadySeconds = 30
		cluster := controllertest.New(rs)
		cluster.Start(t, "replicaset-controller", replicaset.New)
		time.Sleep(time.Second)
		p := pods(t, cluster)[0].DeepCopy()
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		}
		if _, err := cluster.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		got := ""
		for range 2 {
			time.Sleep(20 * time.Second)
			st := get(t, cluster).Status
			got += fmt.Sprint(st.ReadyReplicas, st.AvailableReplicas, ";")
		}
		if want := "1 0;1 1;"; got != want {
			t.Errorf("ready, available after 20 s and 40 s: got %s, want %s", got, want)
		}
	})
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(newSet(2))
		c.Start(t, "replicaset-controller", replicaset.New)
		time.Sleep(time.Second)
		c.Fake.ClearActions()
		time.Sleep(time.Hour)
		if a := c.Fake.Actions(); len(a) != 0 {
			t.Errorf("requests in an idle hour: got %v, want none", a)
		}
	})
}
