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
	l := NewSearcher(SearcherConfig{
		Tracker:       w.known,
		BetweenCycles: func(f func()) { f() },
		IsWaiting:     func(types.UID) bool { return true },
		Activate:      func(pod types.UID) { woken <- pod },
	})
	l.running = true
	w.plugin.Searcher = l
	w.plugin.InCycle = 1
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		l.Run(ctx)
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
		!strings.Contains(a.Message(), "goes on beside other pods") {
		w.t.Fatalf("got %v, %s", a.Chosen, a.Message())
	}
	if got := <-woken; got != "pod-default-p" {
		w.t.Fatalf("woken: %s", got)
	}
}

// TestLane: what the lane found is taken by the next attempt if it is still so, and searched anew if not.
func TestLane(t *testing.T) {
	w, woken := withLane(t, claim("c", exactly("r", "gpu", 1)), slice("a", device("d")), slice("b"))
	w.Add(schedtest.Node("a"), schedtest.Node("b"))
	w.searched(woken)
	taken := having(claim("other"), "a", "d")
	w.known.ClaimChanged(nil, taken)
	w.searched(woken)
	pod := schedtest.Pod("p", using("c"))
	if a := w.Try(pod); a.Chosen != nil || !strings.Contains(a.Message(), "2 cannot allocate all claims") {
		t.Fatalf("the device is taken: got %v, %s", a.Chosen, a.Message())
	}
	w.known.ClaimChanged(taken, nil)
	w.searched(woken)
	w.known.DevicesChanged()
	w.searched(woken)
	a := w.place(pod)
	if a.Chosen == nil || a.Chosen.Name != "a" {
		t.Fatalf("got %v, %s", a.Chosen, a.Message())
	}
	if n := len(w.plugin.Searcher.requests); n != 0 {
		t.Errorf("the lane remembers %d pods", n)
	}
}

// TestLaneIsBounded: the lane knows of so many pods, and tells the others when there is room.
func TestLaneIsBounded(t *testing.T) {
	w := newWorld(t, claim("c", exactly("r", "gpu", 1)), slice("a", device("d")))
	w.Add(schedtest.Node("a"))
	l := NewSearcher(SearcherConfig{
		Tracker:       w.known,
		BetweenCycles: func(f func()) { f() },
		IsWaiting:     func(types.UID) bool { return true },
		Activate:      func(types.UID) {},
	})
	l.running = true
	w.plugin.Searcher = l
	w.plugin.InCycle = 1
	for i := range maxRequests {
		w.Try(schedtest.Pod(fmt.Sprint("p", i), using("c")))
	}
	a := w.Try(schedtest.Pod("late", using("c")))
	if !strings.Contains(a.Message(), "timed out") || len(l.requests) != maxRequests || len(l.pending) != maxRequests {
		t.Fatalf("%s; %d pods, %d turns", a.Message(), len(l.requests), len(l.pending))
	}
	if !l.mayHelp("pod-default-late", "pod-default-p0") || l.mayHelp("pod-default-p1", "pod-default-p0") {
		t.Error("who is woken: not the one that was turned away, or others")
	}
	uid, _ := l.next()
	q := l.start(uid)
	l.finish(uid, q.run(t.Context()))
	if a = w.Try(schedtest.Pod("late", using("c"))); !strings.Contains(a.Message(), "goes on") ||
		len(l.requests) != maxRequests {
		t.Errorf("there is room: %s; %d pods", a.Message(), len(l.requests))
	}
}

// TestLaneWithSharedCounters: that the same devices are free is not enough where devices of a pool share something.
func TestLaneWithSharedCounters(t *testing.T) {
	w := newWorld(t)
	w.known.ClaimChanged(nil, having(claim("early"), "a", "0"))
	then := w.known.view()
	found := []resourcev1.AllocationResult{*having(claim("c"), "a", "d").Status.Allocation}
	w.known.ClaimChanged(nil, having(claim("elsewhere"), "b", "x"))
	if !w.known.view().stillFree(found, then) {
		t.Error("another pool's device was taken: it is searched anew")
	}
	w.known.ClaimChanged(nil, having(claim("near"), "a", "x"))
	if w.known.view().stillFree(found, then) {
		t.Error("another device of the pool was taken: it is believed")
	}
}
