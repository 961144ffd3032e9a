// SPDX-License-Identifier: Apache-2.0

package refs

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"keelson/client/clienttest"
)

// openWatch counts itself until it is stopped.
type openWatch struct {
	watch.Interface
	stop func()
}

func (w openWatch) Stop() {
	w.stop()
	w.Interface.Stop()
}

func countWatches(c *fake.Clientset) *atomic.Int64 {
	var n atomic.Int64
	c.PrependWatchReactor("*", func(a k8stesting.Action) (bool, watch.Interface, error) {
		w, err := c.Tracker().Watch(a.GetResource(), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		n.Add(1)
		return true, openWatch{w, sync.OnceFunc(func() { n.Add(-1) })}, nil
	})
	return &n
}

// TestWatchesFollowUse: whatever the order in which pods take and give back references, one watch is open for each that
// is in use.
func TestWatchesFollowUse(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New()
		open := countWatches(c)
		store := New(c, func(string) {}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { store.Run(ctx) })
		for range 20 {
			var pods sync.WaitGroup
			last := make([][]Ref, 8)
			for i := range last {
				histories := make([][]Ref, 1+rnd.IntN(6))
				for j := range histories {
					for r := range 5 {
						if rnd.IntN(3) == 0 {
							histories[j] = append(histories[j],
								Ref{[]string{ConfigMap, Secret}[r%2], "ns", fmt.Sprint(r)})
						}
					}
				}
				last[i] = histories[len(histories)-1]
				pods.Go(func() {
					for _, refs := range histories {
						store.Use(fmt.Sprint(i), refs)
					}
				})
			}
			pods.Wait()
			synctest.Wait()
			want := map[Ref]bool{}
			for _, refs := range last {
				for _, r := range refs {
					want[r] = true
				}
			}
			if got := open.Load(); got != int64(len(want)) {
				t.Fatalf("seed %d: %d watches are open, want %d", seed, got, len(want))
			}
		}
		for i := range 8 {
			store.Use(fmt.Sprint(i), nil)
		}
		synctest.Wait()
		if got := open.Load(); got != 0 || len(store.items) != 0 || len(store.pods) != 0 {
			t.Errorf("seed %d: after the last pod %d watches, %v, %v; want nothing", seed, got, store.items, store.pods)
		}
		cancel()
		wg.Wait()
	})
}

// TestRefusedWatchBacksOff: an API server that refuses is asked ever more rarely, and not at all once the pod is gone.
func TestRefusedWatchBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := clienttest.New()
		var asked atomic.Int64
		refuse := func() error {
			asked.Add(1)
			return apierrors.NewForbidden(corev1.Resource("configmaps"), "a", nil)
		}
		clientset.PrependReactor("list", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true,
				nil, refuse()
		})
		clientset.PrependWatchReactor("configmaps", func(k8stesting.Action) (bool, watch.Interface, error) {
			return true, nil,
				refuse()
		})
		store := New(clientset, func(string) {}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { store.Run(ctx) })
		store.Use("pod", []Ref{{ConfigMap, "ns", "a"}})
		time.Sleep(10 * time.Minute)
		begun := asked.Load()
		time.Sleep(time.Hour)
		if n := asked.Load() - begun; n == 0 || n > 2*120 { // a list and a watch each time, once in 30 s at most
			t.Errorf("asked %d times in an hour, want 1 to 240", n)
		}
		store.Use("pod", nil)
		synctest.Wait()
		ended := asked.Load()
		time.Sleep(time.Hour)
		if n := asked.Load() - ended; n != 0 {
			t.Errorf("asked %d times after the last pod ended, want 0", n)
		}
		cancel()
		wg.Wait()
	})
}

// TestReferencesAreBounded: a pod with too many names watches nothing, and a namespace has no more watches than its
// share. They are given back.
func TestReferencesAreBounded(t *testing.T) {
	p := &corev1.Pod{}
	p.Namespace = "ns"
	p.Spec.Containers = make([]corev1.Container, 1)
	container := &p.Spec.Containers[0]
	for i := range maxOfPod {
		from := &corev1.ConfigMapEnvSource{}
		from.Name = fmt.Sprint("m", i)
		container.EnvFrom = append(container.EnvFrom, corev1.EnvFromSource{ConfigMapRef: from}, corev1.EnvFromSource{
			ConfigMapRef: from,
		})
	}
	if got, err := Of(p); len(got) != maxOfPod || err != nil {
		t.Fatalf("%d names: got %d references, %v", maxOfPod, len(got), err)
	}
	container.EnvFrom = append(container.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{}})
	container.EnvFrom[len(container.EnvFrom)-1].SecretRef.Name = "one more"
	if got, err := Of(p); err == nil {
		t.Errorf("%d names: got %d references, want an error", maxOfPod+1, len(got))
	}
	store := New(clienttest.New(), func(string) {}, slog.New(slog.DiscardHandler))
	for pod := range 10 {
		var all []Ref
		for i := range maxOfPod {
			all = append(all, Ref{ConfigMap, "ns", fmt.Sprint(pod, "-", i)})
		}
		store.Use(fmt.Sprint(pod), all)
	}
	store.Use("other", []Ref{{ConfigMap, "other", "m"}})
	if len(store.items) != maxOfNamespace+1 || store.watched["ns"] != maxOfNamespace || store.watched["other"] != 1 {
		t.Errorf("got %d watches, %v by namespace, want %d and 1", len(store.items), store.watched, maxOfNamespace)
	}
	store.Use("other", nil)
	for pod := range 10 {
		store.Use(fmt.Sprint(pod), nil)
	}
	if len(store.items)+len(store.watched)+len(store.pods) != 0 {
		t.Errorf("%d watches, %v, %d pods stay", len(store.items), store.watched, len(store.pods))
	}
}
