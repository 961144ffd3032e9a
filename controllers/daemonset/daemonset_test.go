// SPDX-License-Identifier: Apache-2.0

package daemonset_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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

	"keelson/api/apitest"
	"keelson/controllers/controllertest"
	"keelson/controllers/daemonset"
)

func newSet() *appsv1.DaemonSet {
	one := intstr.FromInt32(1)
	none := intstr.FromInt32(0)
	limit := int32(5)
	l := map[string]string{"app": "agent"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "default", Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector:             &metav1.LabelSelector{MatchLabels: l},
			RevisionHistoryLimit: &limit,
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one, MaxSurge: &none},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"color": "blue"},
					Containers:   []corev1.Container{{Name: "c", Image: "v1"}},
				},
			},
		},
	}
}

func node(name, color string) *corev1.Node {
	return apitest.Node(name, apitest.NodeLabels("color", color))
}

func start(t *testing.T, objs ...runtime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(objs...)
	c.Start(t, "daemon-set-controller", daemonset.New)
	return c
}

func pods(t *testing.T, c *controllertest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// pinned is the node that a pod is for.
func pinned(p *corev1.Pod) string {
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// run plays scheduler and kubelets, again and again, until nothing moves.
func run(t *testing.T, cluster *controllertest.Cluster) {
	t.Helper()
	for range 20 {
		time.Sleep(time.Second) // the bubble's clock
		for _, pod := range pods(t, cluster) {
			if pod.Status.Phase != "" {
				continue
			}
			pod.Spec.NodeName = pinned(&pod)
			pod.Status = corev1.PodStatus{
				Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
				},
			}
			if _, err := cluster.CoreV1().Pods("default").Update(t.Context(), &pod,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// images are what runs where.
func images(t *testing.T, c *controllertest.Cluster) string {
	t.Helper()
	var all []string
	for _, p := range pods(t, c) {
		all = append(all, pinned(&p)+"="+p.Spec.Containers[0].Image)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func get(t *testing.T, c *controllertest.Cluster) *appsv1.DaemonSet {
	t.Helper()
	s, err := c.AppsV1().DaemonSets("default").Get(t.Context(), "agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func setImage(t *testing.T, c *controllertest.Cluster, image string) {
	t.Helper()
	s := get(t, c)
	s.Spec.Template.Spec.Containers[0].Image = image
	s.Generation++
	if _, err := c.AppsV1().DaemonSets("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	run(t, c)
}

func TestFollowsTheNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, newSet(), node("n1", "blue"), node("n2", "green"))
		run(t, cluster)
		if got, want := images(t, cluster), "n1=v1"; got != want {
			t.Fatalf("pods: got %s, want %s", got, want)
		}
		st := get(t, cluster).Status
		if st.DesiredNumberScheduled != 1 || st.NumberReady != 1 || st.NumberAvailable != 1 ||
			st.UpdatedNumberScheduled != 1 || st.ObservedGeneration != 1 {
			t.Errorf("status: got %+v", st)
		}
		if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node("n3", "blue"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, color := range map[string]string{"n1": "green", "n2": "blue"} {
			n := node(name, color)
			if _, err := cluster.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		run(t, cluster)
		if got, want := images(t, cluster), "n2=v1 n3=v1"; got != want {
			t.Errorf("after labels flipped: got %s, want %s", got, want)
		}
		if got := pods(t, cluster); len(got) > 0 {
			if err := cluster.CoreV1().Pods("default").Delete(t.Context(), got[0].Name,
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		run(t, cluster)
		if got, want := images(t, cluster), "n2=v1 n3=v1"; got != want {
			t.Errorf("after a deletion: got %s, want %s", got, want)
		}
		cluster.Fake.ClearActions()
		time.Sleep(time.Hour)
		if a := cluster.Fake.Actions(); len(a) != 0 {
			t.Errorf("requests in an idle hour: got %v, want none", a)
		}
	})
}

func TestRolloutAndRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, newSet(), node("n1", "blue"), node("n2", "blue"))
		run(t, cluster)
		hash := pods(t, cluster)[0].Labels[appsv1.ControllerRevisionHashLabelKey]
		setImage(t, cluster, "v2")
		if got, want := images(t, cluster), "n1=v2 n2=v2"; got != want {
			t.Errorf("after an update: got %s, want %s", got, want)
		}
		setImage(t, cluster, "v1")
		if got, want := images(t, cluster), "n1=v1 n2=v1"; got != want {
			t.Errorf("after going back: got %s, want %s", got, want)
		}
		if got := pods(t, cluster)[0].Labels[appsv1.ControllerRevisionHashLabelKey]; got != hash {
			t.Errorf("after going back: got hash %s, want %s as at first", got, hash)
		}
		l, err := cluster.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range l.Items {
			got = append(got,
				fmt.Sprint(r.Revision, r.Name == "agent-"+r.Labels[appsv1.ControllerRevisionHashLabelKey]))
		}
		slices.Sort(got)
		if want := []string{"2 true", "3 true"}; !slices.Equal(got, want) {
			t.Errorf("revisions, and whether hashes name them: got %v, want %v", got, want)
		}
	})
}

func TestFailedPodsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := start(t, newSet(), node("n1", "blue"))
		made := map[string]bool{}
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			for _, p := range pods(t, cluster) {
				made[p.Name] = true
				if p.Status.Phase == "" {
					p.Status.Phase = corev1.PodFailed
					if _, err := cluster.CoreV1().Pods("default").UpdateStatus(t.Context(), &p,
						metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if n := len(made); n < 4 || n > 9 {
			t.Errorf("%d pods failed in a minute, want some with growing pauses", n)
		}
		if said := cluster.EventsSeen(); !slices.ContainsFunc(said, func(s string) bool {
			return strings.HasPrefix(s, "Warning FailedDaemonPod Found failed daemon pod default/agent-") &&
				strings.HasSuffix(s, " on node n1, will try to kill it")
		}) {
			t.Errorf("events: got %q", said)
		}
	})
}

func TestAdoptsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orphan := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name:      "orphan",
				Namespace: "default",
				Labels:    map[string]string{"app": "agent"},
			},
			Spec:   corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		set := newSet()
		set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		cluster := start(t, set, node("n1", "blue"), orphan)
		time.Sleep(time.Minute)
		got := pods(t, cluster)
		if len(got) != 1 || metav1.GetControllerOf(&got[0]) == nil {
			t.Fatalf("got %d pods, the first owned by %v; want the orphan alone, adopted", len(got),
				metav1.GetControllerOf(&got[0]))
		}
		p := got[0].DeepCopy()
		p.Labels = map[string]string{"app": "debug"}
		if _, err := cluster.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		owned := 0
		for _, p := range pods(t, cluster) {
			if metav1.GetControllerOf(&p) != nil {
				owned++
			} else if p.Name != "orphan" {
				t.Errorf("pod %s has no owner", p.Name)
			}
		}
		if owned != 1 {
			t.Errorf("after its labels changed: %d pods are owned, want its successor", owned)
		}
	})
}

// TestStatusConflict: a status that could not be written for a conflict is written a moment later, whether or not an
// event comes.
func TestStatusConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newSet())
		tries := 0
		cluster.Fake.PrependReactor("update", "daemonsets", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if tries++; tries > 1 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(appsv1.Resource("daemonsets"), "x",
				errors.New("too many wrote at once"))
		})
		cluster.Start(t, "daemon-set-controller", daemonset.New)
		time.Sleep(time.Minute)
		if st := get(t, cluster).Status; tries < 2 || st.ObservedGeneration != 1 {
			t.Errorf("after %d writes the status is %+v, want generation 1 observed", tries, st)
		}
	})
}
