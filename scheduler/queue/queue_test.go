// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/queue"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// enteredLog records the pods that entered active, and the reasons.
type enteredLog []string

func newQueue(log *enteredLog) *queue.Queue {
	hints := map[string][]framework.ClusterEventWithHint{
		"Fit": {{Kinds: framework.NodeAdd | framework.AssignedPodDelete | framework.UnscheduledPodUpdate}},
		"Ports": {{
			Kinds: framework.AssignedPodDelete,
			QueueingHintFn: func(*state.PodInfo, *framework.Event) bool {
				return false
			},
		}},
	}
	return queue.New(queue.Config{
		Less:  plugins.PrioritySort{}.Less,
		Rules: queue.Rules{Hints: hints, Gates: []framework.Weighted{{Plugin: plugins.SchedulingGates{}.Plugin()}}},
		Entered: func(p *state.PodInfo, why string, to queue.Place, _ time.Time) {
			if to != queue.Active {
				return
			}
			if log != nil {
				*log = append(*log, p.Pod.Name+" "+why)
			}
		},
	})
}

// pop returns the next pod without waiting; nil: none is ready.
func pop(t *testing.T, q *queue.Queue) *queue.Item {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	return q.Pop(ctx)
}

func name(it *queue.Item) string {
	if it == nil {
		return ""
	}
	return it.Pod.Pod.Name
}

func TestImportantFirstThenOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		for i, prio := range []int32{0, 5, 0, 10, 5} {
			q.Set(schedtest.Pod(fmt.Sprint(i), schedtest.Priority(prio)))
			time.Sleep(time.Millisecond)
		}
		var got []string
		for range 5 {
			got = append(got, name(pop(t, q)))
		}
		if want := []string{"3", "1", "4", "0", "2"}; !slices.Equal(got, want) {
			t.Errorf("order = %v, want %v", got, want)
		}
	})
}

func TestRefusedPodWaitsForTheRightEvent(t *testing.T) {
	tests := []struct {
		name      string
		refusedBy []string
		event     framework.Event
		back      bool
	}{
		{"event the plugin waits for", []string{"Fit"}, framework.Event{Kinds: framework.NodeAdd}, true},
		{"event it does not wait for", []string{"Fit"}, framework.Event{Kinds: framework.NodeTaints}, false},
		{"a closer look says no", []string{"Ports"}, framework.Event{Kinds: framework.AssignedPodDelete}, false},
		{"one of two plugins", []string{"Ports", "Fit"}, framework.Event{Kinds: framework.AssignedPodDelete}, true},
		{"plugin without hints", []string{"Other"}, framework.Event{Kinds: framework.NodeTaints}, true},
		{"no plugin at all", nil, framework.Event{Kinds: framework.NodeAdd}, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(nil)
				defer q.Close()
				q.Set(schedtest.Pod("a"))
				q.Unschedulable(pop(t, q), tc.refusedBy)
				time.Sleep(time.Minute)
				if it := pop(t, q); it != nil {
					t.Fatal("came back without an event")
				}
				q.OnEvent(tc.event)
				if got := pop(t, q) != nil; got != tc.back {
					t.Errorf("back = %v, want %v", got, tc.back)
				}
			})
		})
	}
}

// TestEventDuringAttempt: an event between Pop and Unschedulable must not be lost.
func TestEventDuringAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		q.Set(schedtest.Pod("a"))
		it := pop(t, q)
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		q.Unschedulable(it, []string{"Fit"})
		if it := pop(t, q); it == nil || it.Attempts != 2 {
			t.Errorf("item = %+v, want the second attempt", it)
		}
	})
}

func TestErrorsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		q.Set(schedtest.Pod("a"))
		waits := func(n int) string {
			var all []string
			for range n {
				begin := time.Now()
				q.Retry(q.Pop(t.Context()))
				all = append(all, time.Since(begin).String())
			}
			return strings.Join(all, " ")
		}
		if got, want := waits(7), "0s 1s 2s 4s 8s 10s 10s"; got != want {
			t.Errorf("waits = %v, want %s", got, want)
		}
		// Errors do not make a refused pod wait longer, and a refusal begins their count again.
		q.Unschedulable(q.Pop(t.Context()), nil)
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		if got, want := waits(3), "0s 1s 2s"; got != want {
			t.Errorf("after a refusal: waits = %v, want %s", got, want)
		}
	})
}

func TestUnschedulableIsFlushedAfterFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log enteredLog
		q := newQueue(&log)
		defer q.Close()
		q.Set(schedtest.Pod("a"))
		q.Unschedulable(pop(t, q), []string{"Fit"})
		begin := time.Now()
		it := q.Pop(t.Context())
		if got := time.Since(begin); got != 5*time.Minute || !it.Flushed {
			t.Errorf("waited %v, flushed %v; want 5m, true", got, it.Flushed)
		}
		synctest.Wait() // the timer calls Entered after it has released the lock
		if want := (enteredLog{"a PodAdd", "a UnschedulableTimeout"}); !slices.Equal(log, want) {
			t.Errorf("entered %q, want %q", log, want)
		}
		q.Unschedulable(it, []string{"Fit"})
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		if it := q.Pop(t.Context()); it.Flushed {
			t.Error("after an event: want it not to count as flushed")
		}
	})
}

func TestGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		gated := schedtest.Pod("a", schedtest.With(func(s *corev1.PodSpec) {
			s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}}
		}))
		q.Set(gated)
		if it := pop(t, q); it != nil {
			t.Fatal("a gated pod was handed out")
		}
		if _, _, _, n := q.Len(); n != 1 {
			t.Errorf("%d gated, want 1", n)
		}
		q.Set(schedtest.Pod("a"))
		if it := pop(t, q); name(it) != "a" {
			t.Errorf("popped %q, want a", name(it))
		}
	})
}

func TestUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		q.Set(schedtest.Pod("a"))
		it := pop(t, q)
		q.Set(schedtest.Pod("a", schedtest.Requests("1m", "1Mi"))) // its requests decrease during the attempt
		q.Unschedulable(it, []string{"Fit"})
		it = pop(t, q)
		if it == nil || it.Pod.Request.MilliCPU != 1 {
			t.Fatalf("item = %+v, want the newer pod", it)
		}
		q.Unschedulable(it, []string{"Fit"})
		same := schedtest.Pod("a", schedtest.Requests("1m", "1Mi"))
		same.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}
		q.Set(same) // the scheduler's own status write
		if it := pop(t, q); it != nil {
			t.Error("a status update brought the pod back")
		}
		q.Delete(same.UID)
		if q.Has(same.UID) {
			t.Error("the pod is known after Delete")
		}
	})
}

func TestDeletedWhileInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		p := schedtest.Pod("a")
		q.Set(p)
		it := pop(t, q)
		q.Delete(p.UID)
		q.Unschedulable(it, nil)
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		if it := pop(t, q); it != nil {
			t.Error("a deleted pod came back")
		}
	})
}

// TestNothingIsLost: after any sequence of calls, a pod stays in the queue until Done or Delete, and Pop returns it to
// one caller at a time.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.IntRange(0, 7), 1, 60).Draw(rt, "ops")
		pick := rapid.SliceOfN(rapid.IntRange(0, 4), 60, 60).Draw(rt, "pods")
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(nil)
			defer q.Close()
			in := map[string]bool{}
			flying := map[string]*queue.Item{}
			stale := map[*queue.Item]bool{}
			for i, op := range ops {
				pod := schedtest.Pod(fmt.Sprint(pick[i]))
				switch it := flying[pod.Name]; {
				case op == 0:
					q.Set(pod)
					in[pod.Name] = true
				case op == 1:
					q.Delete(pod.UID)
					delete(in, pod.Name)
					stale[it] = true
				case op == 2:
					if it := pop(t, q); it != nil {
						if old := flying[name(it)]; old != nil && !stale[old] {
							rt.Fatalf("pod %s was handed out twice", name(it))
						}
						flying[name(it)] = it
					}
				case op == 3 && it != nil:
					q.Unschedulable(it, []string{"Fit"})
					delete(flying, pod.Name)
				case op == 4 && it != nil:
					q.Retry(it)
					delete(flying, pod.Name)
				case op == 5:
					q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
				case op == 6:
					time.Sleep(3 * time.Second)
				case op == 7 && it != nil:
					q.Assumed(it)
					q.Done(it)
					if !stale[it] {
						delete(in, pod.Name)
					}
					delete(flying, pod.Name)
				}
			}
			for n, it := range flying {
				q.Unschedulable(it, []string{"Fit"})
				delete(flying, n)
			}
			q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
			time.Sleep(time.Hour)
			got := map[string]bool{}
			for it := pop(t, q); it != nil; it = pop(t, q) {
				got[name(it)] = true
			}
			for n := range in {
				if !got[n] {
					rt.Fatalf("pod %s is lost; ops %v on %v", n, ops, pick)
				}
			}
		})
	})
}

// TestWaitsForKinds: an event of a kind that no pod waits for moves no pod. Pods that begin to wait for other kinds
// later are moved by those.
func TestWaitsForKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		wait := func(name, plugin string) {
			q.Set(schedtest.Pod(name))
			it := pop(t, q)
			if it == nil {
				t.Fatalf("%s is not ready", name)
			}
			q.Unschedulable(it, []string{plugin})
		}
		counts := func(want int) {
			t.Helper()
			if _, _, n, _ := q.Len(); n != want {
				t.Errorf("%d pods wait, want %d", n, want)
			}
		}
		wait("ports", "Ports")
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		counts(1)
		wait("fit", "Fit")
		q.OnEvent(framework.Event{Kinds: framework.AssignedPodAdd})
		counts(2)
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		counts(1)
		q.Delete(schedtest.Pod("ports").UID)
		wait("late", "Fit")
		q.OnEvent(framework.Event{Kinds: framework.NodeAdd})
		counts(0)
	})
}

// BenchmarkHappened measures the cost of an event that helps none of 20,000 unschedulable pods.
func BenchmarkHappened(b *testing.B) {
	q := newQueue(nil)
	defer q.Close()
	for i := range 20000 {
		q.Set(schedtest.Pod(fmt.Sprint("p", i)))
		q.Unschedulable(q.Pop(b.Context()), []string{"Fit"})
	}
	for b.Loop() {
		q.OnEvent(framework.Event{Kinds: framework.AssignedPodAdd})
	}
}

// TestTooManyEventsInFlight: the number of events that are kept for pods in flight is limited. A pod that has missed
// more is tried again.
func TestTooManyEventsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for events, want := range map[int]string{10: "", 100_000: "p"} {
			q := newQueue(nil)
			defer q.Close()
			q.Set(schedtest.Pod("p"))
			it := pop(t, q)
			for range events {
				q.OnEvent(framework.Event{Kinds: framework.NamespaceLabels})
			}
			q.Unschedulable(it, []string{"Fit"})
			if got := name(pop(t, q)); got != want {
				t.Errorf("after %d events: %q is tried again, want %q", events, got, want)
			}
		}
	})
}
