// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

// wired is a loop over replica sets that records which keys it worked on.
type wired struct {
	*controllertest.Cluster
	mu        sync.Mutex
	passes    []string
	strangers []string
	expect    *framework.Expectations
	owners    *framework.Owners[*appsv1.ReplicaSet, *corev1.Pod]
}

func wire(t *testing.T) *wired {
	t.Helper()
	w := &wired{
		Cluster: controllertest.New(setNamed("a", "1"), setNamed("b", "2")),
		expect:  framework.NewExpectations(),
	}
	w.Start(t, "owners", func(env *framework.Env) (framework.Controller, error) {
		sets := appsinformers.New(env.Shared.Scoped()).ReplicaSets()
		pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
		loop := framework.NewLoop(env.Queue, 1, slog.New(slog.DiscardHandler), func(
			_ context.Context, key framework.Key,
		) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.passes = append(w.passes, key.Name)
			if _, err := w.owners.Pass(key, func(*appsv1.ReplicaSet, labels.Selector) error { return nil }); err != nil {
				return err
			}
			return nil
		})
		var err error
		w.owners, err = framework.WatchOwners(env, loop, sets.Informer(),
			pods, framework.Owners[*appsv1.ReplicaSet, *corev1.Pod]{
				Kind:         "ReplicaSet",
				Expect:       w.expect,
				Finished:     podkind.Terminal,
				Selector:     func(rs *appsv1.ReplicaSet) *metav1.LabelSelector { return rs.Spec.Selector },
				StatusDelay:  func(*appsv1.ReplicaSet) time.Duration { return 10 * time.Second },
				WithoutOwner: func(p *corev1.Pod) { w.strangers = append(w.strangers, p.Name) },
			})
		return loop, err
	})
	w.woken(time.Second) // until the caches have everything
	return w
}

// woken are the sets that were worked on within d.
func (w *wired) woken(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Sorted(slices.Values(w.passes))
	w.passes = nil
	return slices.Compact(out)
}

func setNamed(name string, uid types.UID) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: uid},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}},
	}
}

func podOf(owner string, uid types.UID) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"app": owner}},
	}
	if uid != "" {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1",
			Kind:       "ReplicaSet",
			Name:       owner,
			UID:        uid,
			Controller: &yes,
		}}
	}
	return pod
}

func TestOwnersLearnOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wired := wire(t)
		pods := wired.CoreV1().Pods("ns")
		expectWoken := func(what string, d time.Duration, want ...string) {
			t.Helper()
			if got := wired.woken(d); !slices.Equal(got, want) {
				t.Errorf("%s: got passes over %v, want %v", what, got, want)
			}
		}
		update := func(f func(*corev1.Pod)) {
			t.Helper()
			p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f(p)
			if _, err := pods.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		create := func(p *corev1.Pod) {
			t.Helper()
			if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}

		wired.expect.Expect("1", 2)
		create(podOf("a", "1"))
		expectWoken("one of two creations observed", time.Second)
		expectWoken("and a while later", 10*time.Second, "a")
		wired.expect.Expect("1", 0)
		update(func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "y"} })
		expectWoken("a change that is only counted", time.Second)
		expectWoken("and a while later", 10*time.Second, "a")
		update(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		expectWoken("the end of a pod's work", 0, "a")
		update(func(p *corev1.Pod) { p.OwnerReferences = podOf("b", "2").OwnerReferences })
		expectWoken("a pod that moves", 0, "a", "b")
		update(func(p *corev1.Pod) { p.OwnerReferences = nil })
		expectWoken("a pod that is let go, and that another may adopt", 0, "a", "b")
		if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expectWoken("the end of an orphan", time.Minute)
		if !slices.Equal(wired.strangers, []string{"p"}) {
			t.Errorf("strangers that went: %v, want p", wired.strangers)
		}
		create(podOf("a", "another"))
		expectWoken("a pod of an earlier owner of that name", time.Minute)
	})
}

// TestEventNeverComes: a pod that was gone before the informer saw it holds up its set for five minutes, and no
// longer.
func TestEventNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wired := wire(t)
		wired.expect.Expect("1", 1)
		if _, err := wired.AppsV1().ReplicaSets("ns").Update(t.Context(), setNamed("a", "1"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := wired.woken(4 * time.Minute); !slices.Equal(got, []string{"a"}) || wired.expect.Satisfied("1") {
			t.Errorf("at first: passes over %v, nothing expected: %t; want a, false", got, wired.expect.Satisfied("1"))
		}
		if got := wired.woken(2 * time.Minute); !slices.Equal(got, []string{"a"}) || !wired.expect.Satisfied("1") {
			t.Errorf("five minutes later: passes over %v, nothing expected: %t; want a, true", got,
				wired.expect.Satisfied("1"))
		}
	})
}

// TestExpectationsOfPredecessor: the expectations of a deleted set do not hold up another of its name, and are
// not kept.
func TestExpectationsOfPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wired := wire(t)
		wired.expect.Expect("1", 3)
		sets := wired.AppsV1().ReplicaSets("ns")
		if err := sets.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		wired.woken(0)
		if n := wired.expect.Len(); n != 0 {
			t.Errorf("of %d sets something is expected, want none", n)
		}
		wired.expect.Expect("1", 3) // by a pass that still runs
		if _, err := sets.Create(t.Context(), setNamed("a", "3"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := wired.woken(0); !slices.Equal(got, []string{"a"}) || !wired.expect.Satisfied("3") {
			t.Errorf("passes over %v, nothing expected of the new set: %t; want a, true", got,
				wired.expect.Satisfied("3"))
		}
		// The pods of the predecessor are observed, too.
		if _, err := wired.CoreV1().Pods("ns").Create(t.Context(), podOf("a", "1"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wired.woken(0)
		if wired.expect.CreationObserved("1", 1) {
			t.Error("nothing is expected of the predecessor after 2 of 3 pods")
		}
		if !wired.expect.CreationObserved("1", 1) {
			t.Error("something is expected of the predecessor after 3 of 3 pods")
		}
	})
}
