// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/queue"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// TestHintsAreCalledOncePerClass: a hint with ByClass is called once for all pods of a class, and separately for pods
// that are nominated to the event's node.
func TestHintsAreCalledOncePerClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		worth := func(pod *state.PodInfo, e *framework.Event) bool {
			asked = append(asked, pod.Pod.Name[:1])
			return strings.HasPrefix(pod.Pod.Name, e.OldPod.Name)
		}
		q := queue.New(queue.Config{
			Less: plugins.PrioritySort{}.Less,
			Rules: queue.Rules{Hints: map[string][]framework.ClusterEventWithHint{
				"Fit": {
					{Kinds: framework.AssignedPodDelete, ByClass: true, QueueingHintFn: worth},
					{Kinds: framework.UnscheduledPodUpdate},
				},
				"Own": {{Kinds: framework.AssignedPodDelete, QueueingHintFn: worth}},
			}},
		})
		defer q.Close()
		wait := func(by string, pods ...*corev1.Pod) {
			for _, p := range pods {
				q.Set(p)
				q.Unschedulable(pop(t, q), []string{by})
			}
		}
		kept := schedtest.Pod("n1")
		wait("Fit", schedtest.Pod("a1"), schedtest.Pod("a2"), kept, schedtest.Pod("a3"),
			schedtest.Pod("b1", schedtest.Priority(1)),
			schedtest.Pod("b2", schedtest.Priority(1)), schedtest.Pod("c1", schedtest.Requests("1", "")))
		wait("Own", schedtest.Pod("o1"), schedtest.Pod("o2"))
		time.Sleep(time.Minute) // the backoff is over
		room := &state.NodeView{
			Node: state.NewNodeInfo(schedtest.Node("x")),
			Nominated: []*state.PodInfo{
				state.NewPodInfo(kept),
			},
		}
		q.OnEvent(framework.Event{Kinds: framework.AssignedPodDelete, OldPod: schedtest.Pod("a"), NodeView: room})
		slices.Sort(asked)
		if got := strings.Join(asked, " "); got != "a b c n o o" {
			t.Errorf("asked about %q, want each kind once", got)
		}
		var back []string
		for it := pop(t, q); it != nil; it = pop(t, q) {
			back = append(back, name(it))
			q.Unschedulable(it, []string{"Fit"})
		}
		slices.Sort(back)
		if got := strings.Join(back, " "); got != "a1 a2 a3" {
			t.Errorf("tried again: %q, want a1 a2 a3", got)
		}
		// A pod whose requirements change moves to another class.
		time.Sleep(time.Minute)
		changed := schedtest.Pod("b1", schedtest.Priority(1), schedtest.With(func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{"a": "b"}
		}))
		q.Set(changed)
		if it := pop(t, q); name(it) != "b1" {
			t.Fatalf("popped %q, want b1, which changed", name(it))
		}
		asked = nil
		q.OnEvent(framework.Event{Kinds: framework.AssignedPodDelete, OldPod: schedtest.Pod("z")})
		slices.Sort(asked)
		if got := strings.Join(asked, " "); got != "a b c o o" && got != "b c n o o" {
			t.Errorf("asked about %q", got)
		}
	})
}

// TestActivate: Activate makes the queue try a pod again, whatever its place.
func TestActivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(nil)
		defer q.Close()
		pod := schedtest.Pod("a")
		q.Activate(pod.UID) // not in the queue yet
		q.Set(pod)
		q.Activate(pod.UID) // already in active
		it := pop(t, q)
		q.Activate(pod.UID)
		q.Unschedulable(it, []string{"Fit"})
		it = pop(t, q)
		if name(it) != "a" {
			t.Fatal("woken during its attempt, it waits")
		}
		q.Unschedulable(it, []string{"Fit"})
		if it := pop(t, q); it != nil {
			t.Fatal("it was woken once, and is tried again twice")
		}
		q.Activate(pod.UID)
		if it = pop(t, q); name(it) != "a" {
			t.Error("woken while it waits, it is not tried again")
		}
	})
}
