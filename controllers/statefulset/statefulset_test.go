// SPDX-License-Identifier: Apache-2.0

package statefulset_test

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
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
	"keelson/controllers/statefulset"
)

func newSet(replicas int32, f ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	partition := int32(0)
	one := intstr.FromInt32(1)
	limit := int32(1)
	l := map[string]string{"app": "web"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas:             &replicas,
			Selector:             &metav1.LabelSelector{MatchLabels: l},
			RevisionHistoryLimit: &limit,
			PodManagementPolicy:  appsv1.OrderedReadyPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type:          appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition, MaxUnavailable: &one},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
			},
		},
	}
	for _, g := range f {
		g(set)
	}
	return set
}

func pods(t *testing.T, c *controllertest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(l.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return l.Items
}

func images(t *testing.T, c *controllertest.Cluster) string {
	t.Helper()
	var all []string
	for _, p := range pods(t, c) {
		all = append(all, p.Name+"="+p.Spec.Containers[0].Image)
	}
	return strings.Join(all, " ")
}

func get(t *testing.T, c *controllertest.Cluster) *appsv1.StatefulSet {
	t.Helper()
	s, err := c.AppsV1().StatefulSets("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func change(t *testing.T, c *controllertest.Cluster, f func(*appsv1.StatefulSet)) {
	t.Helper()
	s := get(t, c)
	f(s)
	s.Generation++
	if _, err := c.AppsV1().StatefulSets("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// run makes all pods ready, again and again, until nothing moves.
func run(t *testing.T, cluster *controllertest.Cluster) {
	t.Helper()
	for range 40 {
		time.Sleep(time.Second) // the bubble's clock
		for _, p := range pods(t, cluster) {
			if p.Status.Phase == corev1.PodRunning {
				continue
			}
			p.Status = corev1.PodStatus{
				Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
				},
			}
			if _, err := cluster.CoreV1().Pods("default").UpdateStatus(t.Context(), &p,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func revisions(t *testing.T, c *controllertest.Cluster) string {
	t.Helper()
	l, err := c.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range l.Items {
		all = append(all, fmt.Sprint(r.Revision, ":", r.Name))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// newController is New with metrics of its own.
func newController(env *framework.Env) (framework.Controller, error) {
	return statefulset.New(env, statefulset.NewMetrics())
}

func TestRolloutAndRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet(2))
		cluster.Start(t, "statefulset-controller", newController)
		run(t, cluster)
		if got, want := images(t, cluster), "web-0=v1 web-1=v1"; got != want {
			t.Fatalf("pods: got %s, want %s", got, want)
		}
		if got, want := cluster.EventsSeen(), "Normal SuccessfulCreate create Pod web-0 in StatefulSet web "+
			"successful"; len(
			got) != 2 || got[0] != want {
			t.Errorf("events: got %q, want 2, the first %q", got, want)
		}
		first := get(t, cluster).Status
		if first.UpdateRevision == "" || first.CurrentRevision != first.UpdateRevision || first.ReadyReplicas != 2 ||
			first.AvailableReplicas != 2 || first.ObservedGeneration != 1 {
			t.Errorf("status: got %+v", first)
		}
		change(t, cluster, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "v2" })
		run(t, cluster)
		second := get(t, cluster).Status
		if got, want := images(t, cluster), "web-0=v2 web-1=v2"; got != want ||
			second.CurrentRevision == first.CurrentRevision || second.UpdatedReplicas != 2 {
			t.Errorf("after an update: got %s, %+v; want %s", got, second, want)
		}
		if said := cluster.EventsSeen(); len(said) != 4 ||
			said[0] != "Normal SuccessfulDelete delete Pod web-1 in StatefulSet web successful" ||
			said[2] != "Normal SuccessfulDelete delete Pod web-0 in StatefulSet web successful" {
			t.Errorf("events: got %q", said)
		}
		change(t, cluster, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "v1" })
		run(t, cluster)
		if got := get(t, cluster).Status.CurrentRevision; got != first.CurrentRevision {
			t.Errorf("after going back: got revision %s, want the first again, %s", got, first.CurrentRevision)
		}
		if got, want := revisions(t, cluster), "2:"+second.CurrentRevision+" 3:"+first.CurrentRevision; got != want {
			t.Errorf("revisions: got %s, want %s", got, want)
		}
		for _, v := range []string{"v3", "v4"} {
			change(t, cluster, func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = v })
			run(t, cluster)
		}
		if got := revisions(t, cluster); strings.Count(got, ":") != 2 || !strings.HasPrefix(got, "4:") {
			t.Errorf("revisionHistoryLimit 1: got %s, want the present revision and one before", got)
		}
		cluster.Fake.ClearActions()
		time.Sleep(time.Hour)
		if a := cluster.Fake.Actions(); len(a) != 0 {
			t.Errorf("requests in an idle hour: got %v, want none", a)
		}
	})
}

func TestClaimsFollowThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet(2, func(s *appsv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		}))
		cluster.Start(t, "statefulset-controller", newController)
		run(t, cluster)
		owners := func() string {
			l, err := cluster.CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, p := range l.Items {
				one := p.Name
				for _, r := range p.OwnerReferences {
					one += "<" + r.Kind
				}
				all = append(all, one)
			}
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		if got, want := owners(), "data-web-0 data-web-1"; got != want {
			t.Fatalf("claims: got %s, want %s", got, want)
		}
		if said := cluster.EventsSeen(); len(said) == 0 ||
			said[0] != "Normal SuccessfulCreate create Claim data-web-0 Pod web-0 in StatefulSet web success" {
			t.Errorf("events: got %q", said)
		}
		change(t, cluster, func(s *appsv1.StatefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: "Delete",
				WhenScaled:  "Delete",
			}
		})
		run(t, cluster)
		if got, want := owners(), "data-web-0<StatefulSet data-web-1<StatefulSet"; got != want {
			t.Errorf("with policy Delete: got %s, want %s", got, want)
		}
		change(t, cluster, func(s *appsv1.StatefulSet) { *s.Spec.Replicas = 1 })
		run(t, cluster)
		if got, want := owners(), "data-web-0<StatefulSet data-web-1<Pod"; got != want || len(pods(t, cluster)) != 1 {
			t.Errorf("scaled down: got %s and %d pods; want %s and 1", got, len(pods(t, cluster)), want)
		}
		change(t, cluster, func(s *appsv1.StatefulSet) { *s.Spec.Replicas = 2 })
		run(t, cluster)
		if n := len(pods(t, cluster)); n != 1 {
			t.Errorf("while the claim of the pod before is there: got %d pods, want 1", n)
		}
		// The garbage collector's part.
		if err := cluster.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data-web-1",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		run(t, cluster)
		if got, want := owners(), "data-web-0<StatefulSet data-web-1<StatefulSet"; got != want ||
			len(pods(t, cluster)) != 2 {
			t.Errorf("scaled up again: got %s and %d pods; want %s and 2", got, len(pods(t, cluster)), want)
		}
	})
}

func TestRefusalsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet(2))
		var tries atomic.Int32
		var repaired atomic.Bool
		cluster.Fake.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if repaired.Load() {
				return false, nil, nil
			}
			tries.Add(1)
			return true, nil, errors.New("exceeded quota")
		})
		cluster.Start(t, "statefulset-controller", newController)
		time.Sleep(time.Minute)
		if n := tries.Load(); n < 5 || n > 20 {
			t.Errorf("%d tries in a minute, want some with growing pauses", n)
		}
		if said := cluster.EventsSeen(); len(said) == 0 ||
			said[0] != "Warning FailedCreate create Pod web-0 in StatefulSet web failed error: exceeded quota" {
			t.Errorf("events: got %q", said)
		}
		repaired.Store(true)
		time.Sleep(3 * time.Minute)
		run(t, cluster)
		if n := len(pods(t, cluster)); n != 2 {
			t.Errorf("after the repair: got %d pods, want 2", n)
		}
	})
}

func TestNamesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := map[string]string{"app": "web"}
		ours := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: mine},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: "v0"}}},
		}
		stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stranger", Namespace: "default", Labels: mine}}
		taken := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "default"}}
		cluster := controllertest.New(newSet(2, func(s *appsv1.StatefulSet) {
			s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}), ours, stranger, taken)
		cluster.Start(t, "statefulset-controller", newController)
		time.Sleep(time.Minute)
		got := ""
		for _, p := range pods(t, cluster) {
			got += fmt.Sprint(p.Name, " ", metav1.GetControllerOf(&p) != nil, "; ")
		}
		if want := "stranger false; web-0 false; web-1 true; "; got != want {
			t.Errorf("pods and whether they have a controller: got %s, want %s", got, want)
		}
		if said := cluster.EventsSeen(); !slices.ContainsFunc(said, func(s string) bool {
			return strings.HasPrefix(s, "Warning FailedCreate create Pod web-0 in StatefulSet web failed error: ") &&
				strings.Contains(s, "already exists")
		}) {
			t.Errorf("events: got %q, want one about the name that is taken", said)
		}
	})
}

// TestStatusConflict: a status that could not be written for a conflict is written a moment later, whether or not an
// event comes.
func TestStatusConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet(0))
		tries := 0
		cluster.Fake.PrependReactor("update", "statefulsets", func(
			a clienttesting.Action,
		) (bool, runtime.Object, error) {
			if tries++; tries > 1 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(appsv1.Resource("statefulsets"), "x",
				errors.New("too many wrote at once"))
		})
		cluster.Start(t, "statefulset-controller", newController)
		time.Sleep(time.Minute)
		if st := get(t, cluster).Status; tries < 2 || st.ObservedGeneration != 1 {
			t.Errorf("after %d writes the status is %+v, want generation 1 observed", tries, st)
		}
	})
}
