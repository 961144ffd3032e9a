// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/noderesources"
	"keelson/scheduler/queue"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// groupInFlight returns a queue with a popped group of n pods, which the plugin Fit will refuse.
func groupInFlight(tb testing.TB, n int, hint framework.ClusterEventWithHint) (*queue.Queue, *queue.Item) {
	tb.Helper()
	q := queue.New(queue.Config{
		Less:   plugins.PrioritySort{}.Less,
		Groups: true,
		Rules:  queue.Rules{Hints: map[string][]framework.ClusterEventWithHint{"Fit": {hint}}},
	})
	group := "g"
	for i := range n {
		q.Set(schedtest.Pod(fmt.Sprint(i), schedtest.Requests("2", ""), schedtest.With(func(s *corev1.PodSpec) {
			s.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
		})))
	}
	head := q.Pop(tb.Context())
	if len(head.Members()) != n {
		tb.Fatalf("popped %d members, want %d", len(head.Members()), n)
	}
	return q, head
}

// TestFinishGroupIsBounded: FinishGroup checks a limited number of missed events, and makes the queue try a group again
// that missed more. Events of kinds for which no plugin has a hint do not count.
func TestFinishGroupIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name            string
		members, events int
		kind            framework.EventKinds
		again           bool
	}{
		{"few", 10, 100, framework.AssignedPodDelete, false},
		{"as many as are checked", 100, 500, framework.AssignedPodDelete, false},
		{"more", 100, 501, framework.AssignedPodDelete, true},
		{"many of another kind", 100, 1000, framework.NodeTaints, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				q, head := groupInFlight(t, tt.members, framework.ClusterEventWithHint{
					Kinds: framework.AssignedPodDelete,
					QueueingHintFn: func(*state.PodInfo, *framework.Event) bool {
						calls++
						return false
					},
				})
				defer q.Close()
				for range tt.events {
					q.OnEvent(framework.Event{Kinds: tt.kind})
				}
				q.FinishGroup(head, head.Members(), []string{"Fit"}, false)
				if calls > 50_000 {
					t.Errorf("%d calls of the hint", calls)
				}
				time.Sleep(time.Minute) // the backoff is over
				if again := pop(t, q) != nil; again != tt.again {
					t.Errorf("tried again: %v, want %v", again, tt.again)
				}
			})
		})
	}
}

// BenchmarkFinishGroup is the time for which FinishGroup holds the lock, after an attempt with so many events that the
// hint of NodeResourcesFit checks for nothing.
func BenchmarkFinishGroup(b *testing.B) {
	node := state.NewNodeInfo(schedtest.Node("n", schedtest.Allocatable(corev1.ResourceCPU, "1")))
	gone := schedtest.Pod("gone", schedtest.On("n"), schedtest.Priority(10))
	var hint framework.ClusterEventWithHint
	for _, h := range (noderesources.Fit{}).Plugin().Events {
		if h.Kinds&framework.AssignedPodDelete != 0 {
			hint = h
		}
	}
	for _, tt := range []struct{ members, events int }{{10, 1_000}, {10, 49_000}, {100, 49_000}, {1_000, 49_000}} {
		b.Run(fmt.Sprintf("members=%d/events=%d", tt.members, tt.events), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				q, head := groupInFlight(b, tt.members, hint)
				for range tt.events {
					q.OnEvent(framework.Event{
						Kinds:    framework.AssignedPodDelete,
						OldPod:   gone,
						NodeView: &state.NodeView{Node: node},
					})
				}
				b.StartTimer()
				q.FinishGroup(head, head.Members(), []string{"Fit"}, false)
				b.StopTimer()
				q.Close()
				b.StartTimer()
			}
		})
	}
}
