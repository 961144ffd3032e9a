// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
)

func pod(name string, owner *metav1.OwnerReference) *corev1.Pod {
	p := apitest.Pod(name, apitest.Labels("app", "web"), apitest.Ready)
	if owner != nil {
		p.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return p
}

func ref(apiVersion, kind, name string) *metav1.OwnerReference {
	yes := true
	return &metav1.OwnerReference{
		APIVersion: apiVersion,
		Kind:       kind,
		Name:       name,
		UID:        types.UID(name),
		Controller: &yes,
	}
}

func named(name string, owner *metav1.OwnerReference) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return m
}

func read(t *testing.T, c *controllertest.Cluster) *policyv1.PodDisruptionBudget {
	t.Helper()
	time.Sleep(time.Second)
	b, err := c.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func brief(b *policyv1.PodDisruptionBudget) string {
	s := &b.Status
	reason := "none"
	if c := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition); c != nil {
		reason = c.Reason
	}
	return fmt.Sprintf("%d/%d of %d, allowed %d, %s", s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods,
		s.DisruptionsAllowed, reason)
}

// TestCountsOwners: percentages and maxUnavailable are of what the owners want, two ReplicaSets of one Deployment
// counting once.
func TestCountsOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := func(i int32) *int32 { return &i }
		objs := []runtime.Object{
			&appsv1.Deployment{ObjectMeta: named("d", nil), Spec: appsv1.DeploymentSpec{Replicas: n(4)}},
			&appsv1.ReplicaSet{
				ObjectMeta: named("d-1", ref("apps/v1", "Deployment", "d")),
				Spec: appsv1.ReplicaSetSpec{
					Replicas: n(3),
				},
			},
			&appsv1.ReplicaSet{
				ObjectMeta: named("d-2", ref("apps/v1", "Deployment", "d")),
				Spec: appsv1.ReplicaSetSpec{
					Replicas: n(1),
				},
			},
			&appsv1.ReplicaSet{ObjectMeta: named("rs", nil), Spec: appsv1.ReplicaSetSpec{Replicas: n(2)}},
			&appsv1.StatefulSet{ObjectMeta: named("ss", nil), Spec: appsv1.StatefulSetSpec{Replicas: n(3)}},
			&corev1.ReplicationController{
				ObjectMeta: named("rc", nil),
				Spec:       corev1.ReplicationControllerSpec{Replicas: n(1)},
			},
			pod("d-1-a", ref("apps/v1", "ReplicaSet", "d-1")), pod("d-1-b", ref("apps/v1", "ReplicaSet", "d-1")),
			pod("d-2-a", ref("apps/v1", "ReplicaSet", "d-2")),
			pod("rs-a", ref("apps/v1", "ReplicaSet", "rs")), pod("ss-0", ref("apps/v1", "StatefulSet", "ss")),
			pod("rc-a", ref("v1", "ReplicationController", "rc")),
			budget("50%", ""),
		}
		cluster := controllertest.New(objs...)
		cluster.Start(t, "disruption-controller", New)
		if got, want := brief(read(t, cluster)), "6/5 of 10, allowed 1, SufficientPods"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		// More are wanted, none is there yet.
		d, err := cluster.AppsV1().Deployments("default").Get(t.Context(), "d", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d.Spec.Replicas = n(8)
		if _, err := cluster.AppsV1().Deployments("default").Update(t.Context(), d,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, want := brief(read(t, cluster)), "6/7 of 14, allowed 0, InsufficientPods"; got != want {
			t.Errorf("after scaling: got %s, want %s", got, want)
		}
		if got := cluster.EventsSeen(); len(got) != 0 {
			t.Errorf("events: %q", got)
		}
	})
}

// TestCustomScale: the scale of a custom owner is asked for; an owner that cannot be scaled makes the budget fail safe,
// once.
func TestCustomScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scale := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "autoscaling/v1",
			"kind":       "Scale",
			"metadata":   map[string]any{"name": "r", "namespace": "default", "uid": "r"},
			"spec":       map[string]any{"replicas": int64(5)},
		}}
		cluster := controllertest.New(pod("a", ref("example.com/v1", "Rollout", "r")),
			pod("b", ref("example.com/v1", "Rollout", "r")), budget("", "4"))
		dyn := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		dyn.PrependReactor("get", "rollouts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetSubresource() == "scale", scale, nil
		})
		cluster.Dynamic = dyn
		cluster.Fake.Resources = []*metav1.APIResourceList{{
			GroupVersion: "example.com/v1",
			APIResources: []metav1.APIResource{
				{Name: "rollouts", Kind: "Rollout"}, {
					Name:    "rollouts/scale",
					Kind:    "Scale",
					Group:   "autoscaling",
					Version: "v1",
				}, {Name: "things", Kind: "Thing"},
			},
		}}
		cluster.Start(t, "disruption-controller", New)
		if got, want := brief(read(t, cluster)), "2/1 of 5, allowed 1, SufficientPods"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for _, tt := range []struct{ kind, version, want string }{
			{"Thing", "example.com/v1", "things.example.com does not implement the scale subresource"},
			{"Other", "example.com/v1", `no matches for kind "Other" in version "example.com/v1"`},
		} {
			if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), pod("x", ref(tt.version, tt.kind, "t")),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			b := read(t, cluster)
			if got, want := brief(b), "2/1 of 5, allowed 0, SyncFailed"; got != want ||
				b.Status.Conditions[0].Message != tt.want {
				t.Errorf("%s: got %s (%s), want %s (%s)", tt.kind, got, b.Status.Conditions[0].Message, want, tt.want)
			}
			said := cluster.EventsSeen()
			want := "Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: " +
				tt.want
			if len(said) == 0 || said[0] != want {
				t.Errorf("%s: events %q, want %q", tt.kind, said, want)
			}
			asked := len(cluster.Fake.Actions())
			time.Sleep(time.Hour)
			if n := len(cluster.Fake.Actions()) - asked; n > 0 {
				t.Errorf("%s: %d requests in an hour in which nothing changed", tt.kind, n)
			}
			if err := cluster.CoreV1().Pods("default").Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if got, want := brief(read(t, cluster)), "2/1 of 5, allowed 1, SufficientPods"; got != want {
				t.Errorf("without the %s: got %s, want %s", tt.kind, got, want)
			}
			cluster.EventsSeen()
		}
	})
}

func TestUnmanagedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(pod("a", nil), pod("b", nil), budget("", "1"))
		cluster.Start(t, "disruption-controller", New)
		if got, want := brief(read(t, cluster)), "2/0 of 0, allowed 0, InsufficientPods"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := cluster.EventsSeen(); len(got) == 0 ||
			!strings.HasPrefix(got[0], "Warning UnmanagedPods Pods selected by this PodDisruptionBudget (selector: "+
				"&LabelSelector{MatchLabels:map[string]string{app: web,}") {
			t.Errorf("events: %q", got)
		}
		for _, name := range []string{"a", "b"} {
			if err := cluster.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		read(t, cluster)
		if got, want := cluster.EventsSeen(), "Normal NoPods No matching pods found"; !slices.Contains(got, want) {
			t.Errorf("events: %q, want %q among them", got, want)
		}
	})
}

// TestMirrorPodStopsNoEviction: a node's pod with the labels of a budget leaves the budget computed.
func TestMirrorPodStopsNoEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := &appsv1.ReplicaSet{ObjectMeta: named("rs", nil), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2))}}
		of := ref("apps/v1", "ReplicaSet", "rs")
		mirror := pod("mirror", ref("v1", "Node", "n"))
		mirror.Status.Conditions = nil
		cluster := controllertest.New(rs, pod("a", of), pod("b", of), mirror, budget("", "1"))
		cluster.Start(t, "disruption-controller", New)
		if got, want := brief(read(t, cluster)), "2/1 of 2, allowed 1, SufficientPods"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		cluster.EventsSeen()
	})
}

// TestEvictedButNotDeleted: a budget waits two minutes for the deletion of what was evicted.
func TestEvictedButNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget("1", "")
		b.Status.DisruptedPods = map[string]metav1.Time{"a": metav1.Now(), "gone": metav1.Now()}
		cluster := controllertest.New(pod("a", nil), pod("b", nil), b)
		cluster.Start(t, "disruption-controller", New)
		if got, want := brief(read(t, cluster)), "1/1 of 2, allowed 0, InsufficientPods"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := read(t, cluster).Status.DisruptedPods; len(got) != 1 {
			t.Errorf("disrupted: %v, want a only", got)
		}
		time.Sleep(2 * time.Minute)
		if got, want := brief(read(t, cluster)), "2/1 of 2, allowed 1, SufficientPods"; got != want {
			t.Errorf("after two minutes: got %s, want %s", got, want)
		}
		if got, want := cluster.EventsSeen(), "Warning NotDeleted Pod was expected by PDB default/b to be deleted "+
			"but it "+
			"wasn't"; !slices.Contains(got, want) {
			t.Errorf("events: %q, want %q", got, want)
		}
	})
}

// TestWithdrawsTarget: a condition DisruptionTarget that no deletion follows becomes False.
func TestWithdrawsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pod("a", nil)
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type:               corev1.DisruptionTarget,
			Status:             corev1.ConditionTrue,
			Reason:             "EvictionByEvictionAPI",
			Message:            "Eviction API: evicting",
			LastTransitionTime: metav1.Now(),
		})
		c := controllertest.New(p)
		c.Start(t, "disruption-controller", New)
		target := func() corev1.PodCondition {
			p, err := c.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return p.Status.Conditions[slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.DisruptionTarget
			})]
		}
		time.Sleep(119 * time.Second)
		if got := target(); got.Status != corev1.ConditionTrue {
			t.Errorf("before two minutes: %+v", got)
		}
		time.Sleep(2 * time.Second)
		if got := target(); got.Status != corev1.ConditionFalse || got.Reason != "" || got.Message != "" {
			t.Errorf("after two minutes: %+v", got)
		}
	})
}

func TestMultipleBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := budget("1", "")
		other.Name = "a"
		other.UID = "a"
		c := controllertest.New(budget("1", ""), other)
		c.Start(t, "disruption-controller", New)
		read(t, c)
		c.EventsSeen()
		if _, err := c.CoreV1().Pods("default").Create(t.Context(), pod("p", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, want := brief(read(t, c)), "1/1 of 1, allowed 0, InsufficientPods"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got, want := c.EventsSeen(),
			`Warning MultiplePodDisruptionBudgets Pod "default"/"p" matches multiple PodDisruptionBudgets.  Chose "a" arbitrarily.`; !slices.Contains(
			got, want) {
			t.Errorf("events: %q, want %q", got, want)
		}
	})
}
