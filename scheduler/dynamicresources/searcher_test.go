// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/schedtest"
)

// withLane is a world where every search is left to the lane, which runs until the test ends. Who is woken comes out of
// the channel.
func withLane(t *testing.T, objs ...any) (*world, <-chan types.UID) {
	t.Helper()
	w := newWorld(t, objs...)
	woken := make(chan types.UID, 100)
	searcher := NewSearcher(SearcherConfig{
		Tracker:       w.known,
		BetweenCycles: func(f func()) { f() },
		IsWaiting:     func(types.UID) bool { return true },
		Activate:      func(pod types.UID) { woken <- pod },
	})
	searcher.running = true
	w.plugin.Searcher = searcher
	w.plugin.InCycle = 1
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		searcher.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w, woken
}

// searched makes an attempt, which is left to the lane, and waits for the lane.
func (w *world) searched(woken <-chan types.UID) {
	w.t.Helper()
	if a := w.Try(schedtest.Pod("p", using("c"))); a.Chosen != nil ||
		!strings.Contains(a.Message(), "continues while other pods are scheduled") {
		w.t.Fatalf("got %v, %s", a.Chosen, a.Message())
	}
	if got := <-woken; got != "pod-default-p" {
		w.t.Fatalf("woken: %s", got)
	}
}

// TestLane: the next attempt uses what the lane found if it still holds; if not, the lane searches again.
func TestLane(t *testing.T) {
	world, woken := withLane(t, claim("c", exactly("r", "gpu", 1)), slice("a", device("d")), slice("b"))
	world.Add(schedtest.Node("a"), schedtest.Node("b"))
	world.searched(woken)
	taken := having(claim("other"), "a", "d")
	world.known.ClaimChanged(nil, taken)
	world.searched(woken)
	pod := schedtest.Pod("p", using("c"))
	if a := world.Try(pod); a.Chosen != nil || !strings.Contains(a.Message(), "2 cannot allocate all claims") {
		t.Fatalf("the device is taken: got %v, %s", a.Chosen, a.Message())
	}
	world.known.ClaimChanged(taken, nil)
	world.searched(woken)
	world.known.DevicesChanged()
	world.searched(woken)
	a := world.place(pod)
	if a.Chosen == nil || a.Chosen.Name != "a" {
		t.Fatalf("got %v, %s", a.Chosen, a.Message())
	}
	if n := len(world.plugin.Searcher.requests); n != 0 {
		t.Errorf("the lane remembers %d pods", n)
	}
}

// TestLaneIsBounded: the lane holds a limited number of pods, and notifies the others when there is room.
func TestLaneIsBounded(t *testing.T) {
	world := newWorld(t, claim("c", exactly("r", "gpu", 1)), slice("a", device("d")))
	world.Add(schedtest.Node("a"))
	searcher := NewSearcher(SearcherConfig{
		Tracker:       world.known,
		BetweenCycles: func(f func()) { f() },
		IsWaiting:     func(types.UID) bool { return true },
		Activate:      func(types.UID) {},
	})
	searcher.running = true
	world.plugin.Searcher = searcher
	world.plugin.InCycle = 1
	for i := range maxRequests {
		world.Try(schedtest.Pod(fmt.Sprint("p", i), using("c")))
	}
	attempt := world.Try(schedtest.Pod("late", using("c")))
	if !strings.Contains(attempt.Message(), "timed out") || len(searcher.requests) != maxRequests ||
		len(searcher.pending) != maxRequests {
		t.Fatalf("%s; %d pods, %d turns", attempt.Message(), len(searcher.requests), len(searcher.pending))
	}
	if !searcher.mayHelp("pod-default-late", "pod-default-p0") || searcher.mayHelp("pod-default-p1", "pod-default-p0") {
		t.Error("who is woken: not the one that was turned away, or others")
	}
	uid, _ := searcher.next()
	q := searcher.start(uid)
	searcher.finish(uid, q.run(t.Context()))
	if attempt = world.Try(schedtest.Pod("late", using("c"))); !strings.Contains(attempt.Message(), "continues") ||
		len(searcher.requests) != maxRequests {
		t.Errorf("there is room: %s; %d pods", attempt.Message(), len(searcher.requests))
	}
}

// TestLaneWithSharedCounters: it is not enough that the same devices are free where devices of a pool share counters.
func TestLaneWithSharedCounters(t *testing.T) {
	w := newWorld(t)
	w.known.ClaimChanged(nil, having(claim("early"), "a", "0"))
	then := w.known.view()
	found := []resourcev1.AllocationResult{*having(claim("c"), "a", "d").Status.Allocation}
	w.known.ClaimChanged(nil, having(claim("elsewhere"), "b", "x"))
	if !w.known.view().stillFree(found, then) {
		t.Error("another pool's device was taken: the search starts over")
	}
	w.known.ClaimChanged(nil, having(claim("near"), "a", "x"))
	if w.known.view().stillFree(found, then) {
		t.Error("another device of the pool was taken: the result is still used")
	}
}
