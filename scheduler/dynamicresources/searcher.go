// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"

	"keelson/lib/signal"
	"keelson/scheduler/framework"
)

// Searcher continues device searches outside the scheduling cycle when they exceed Config.InCycle, so that other pods
// do not wait. It serves one pod at a time, and searches the nodes for which the cycle had no time until it finds
// devices on one of them. Then it activates the pod, and the next attempt uses the result if it is still valid.
// Searcher reads only immutable data. It reserves no device: Reserve does.
//
//	Filter is out of time -> enqueue -> start, after the attempt -> run -> finish -> Activate -> lastResult
type Searcher struct {
	SearcherConfig
	wake signal.Signal

	mu          sync.Mutex
	running     bool
	requests    map[types.UID]*searchRequest
	pending     []types.UID // pods with a queued request
	rejected    bool        // there was no room for a request
	lastTimeout time.Time   // when an attempt last ran out of time
}

// SearcherConfig has the dependencies of a Searcher.
type SearcherConfig struct {
	Tracker *Tracker
	// BetweenCycles runs a function between two scheduling cycles.
	BetweenCycles func(func())
	// IsWaiting reports whether a pod is still in the scheduling queue. Activate makes the queue try it again.
	IsWaiting func(types.UID) bool
	Activate  func(types.UID)
}

const (
	// maxRequests bounds the pods with a request or result. A new request replaces a result.
	maxRequests = 256
	// After a cycle that ran out of time, the next cycles have reducedBudget for a while. So many pods with hard
	// searches delay the loop no more than one.
	reducedFor    = time.Second
	reducedBudget = 5 * time.Millisecond
)

// searchRequest is the request of one pod.
type searchRequest struct {
	plugin   *Plugin
	claims   []*resourcev1.ResourceClaim
	extended *extended
	nodes    []*corev1.Node // to search
	queued   bool           // it is in Searcher.pending
	result   *searchResult  // of the last search; nil: none
}

// searchResult is the result of a search. Immutable.
type searchResult struct {
	claims   []*resourcev1.ResourceClaim
	view     view
	nodes    map[string]*nodeResult
	timedOut bool // nodes without a result were not searched in time
}

// nodeResult is the result for one node: an allocation or a refusal.
type nodeResult struct {
	node    *corev1.Node
	found   []resourcev1.AllocationResult
	refusal *framework.Status
}

// NewSearcher returns a Searcher. It accepts requests while Run runs.
func NewSearcher(c SearcherConfig) *Searcher {
	return &Searcher{SearcherConfig: c, wake: signal.New(), requests: map[types.UID]*searchRequest{}}
}

// Run searches until ctx is done.
func (l *Searcher) Run(ctx context.Context) {
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	for {
		select {
		case <-l.wake.C():
		case <-ctx.Done():
			return
		}
		for uid, ok := l.next(); ok && ctx.Err() == nil; uid, ok = l.next() {
			var q *searchRequest
			l.BetweenCycles(func() { q = l.start(uid) })
			if q == nil {
				continue
			}
			l.finish(uid, q.run(ctx))
			if ctx.Err() == nil {
				l.Activate(uid)
			}
		}
	}
}

// isRunning reports whether requests are accepted.
func (l *Searcher) isRunning() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running
}

// budget returns the time for a search in the scheduling cycle: usual, or less after a timeout.
func (l *Searcher) budget(usual time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.lastTimeout) < reducedFor {
		return min(reducedBudget, usual)
	}
	return usual
}

// enqueue adds a node to the pod's request. It returns the status of the node until there is a result.
func (l *Searcher) enqueue(s *podClaims, node *corev1.Node) *framework.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.requests[s.pod.UID]
	if q == nil {
		l.lastTimeout = time.Now()
		if !l.makeRoomLocked() {
			l.rejected = true
			return timedOut
		}
		q = &searchRequest{}
		l.requests[s.pod.UID] = q
	}
	if q.plugin != s.plugin || !sameClaims(q.claims, s.unallocated) {
		q.plugin = s.plugin
		q.claims = s.unallocated
		q.nodes = nil
	}
	q.extended = s.extended
	if !q.queued {
		q.queued = true
		l.pending = append(l.pending, s.pod.UID)
		l.wake.Notify()
	}
	q.nodes = append(q.nodes, node)
	return searching
}

// makeRoomLocked makes room for another request. It reports whether there is room.
func (l *Searcher) makeRoomLocked() bool {
	for pod, q := range l.requests {
		if len(l.requests) < maxRequests {
			break
		}
		if !q.queued {
			delete(l.requests, pod)
		}
	}
	return len(l.requests) < maxRequests
}

// mayHelp is the QueueingHint for Searches: the event is about the pod, or the pod's request was rejected before and
// may have room now.
func (l *Searcher) mayHelp(pod, about types.UID) bool {
	if pod == about || l == nil {
		return pod == about
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rejected && l.requests[pod] == nil
}

// sameClaims compares UIDs. The spec of a claim is immutable.
func sameClaims(a, b []*resourcev1.ResourceClaim) bool {
	return slices.EqualFunc(a, b, func(a, b *resourcev1.ResourceClaim) bool { return a.UID == b.UID })
}

// forget removes the request and result of a pod that has its devices.
func (l *Searcher) forget(pod types.UID) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.requests, pod)
}

func (l *Searcher) next() (pod types.UID, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return "", false
	}
	pod = l.pending[0]
	l.pending = l.pending[1:]
	return pod, true
}

// start dequeues a pod's request; nil: the pod no longer waits.
func (l *Searcher) start(pod types.UID) *searchRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.requests[pod]
	if q == nil || !q.queued || !l.IsWaiting(pod) {
		delete(l.requests, pod)
		return nil
	}
	todo := *q
	q.queued = false
	q.nodes = nil
	return &todo
}

func (l *Searcher) finish(pod types.UID, a *searchResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.requests[pod]; q != nil {
		q.result = a
	}
	l.rejected = l.rejected && len(l.pending) > 0
}

// lastResult returns the result for a pod; nil: the pod has no request. It is empty while the search is not done.
func (l *Searcher) lastResult(s *podClaims) *searchResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.requests[s.pod.UID]
	if q == nil {
		return nil
	}
	if q.result == nil || !sameClaims(q.result.claims, s.unallocated) {
		return &searchResult{} // the search was too long for the cycle, so the cycle does not start it again
	}
	return q.result
}

// run searches one node after the other until devices are found.
func (q *searchRequest) run(ctx context.Context) *searchResult {
	tracker := q.plugin.Tracker
	a := &searchResult{claims: q.claims, view: tracker.view(), nodes: map[string]*nodeResult{}}
	if q.result != nil && sameClaims(q.result.claims, q.claims) {
		for name, v := range q.result.nodes { // results that are still valid
			if found, no := q.result.validFor(v.node, a.view); found != nil || no != nil {
				a.nodes[name] = v
			}
		}
	}
	offered, err := tracker.allSlices()
	if err != nil {
		return a
	}
	allocator, err := structured.NewAllocator(ctx, features, a.view.taken, tracker, offered, q.plugin.cel)
	if err != nil {
		return a
	}
	until := time.Now().Add(q.plugin.Filter)
	for _, node := range q.nodes {
		if v := a.nodes[node.Name]; v != nil && v.node == node {
			continue
		}
		left := time.Until(until)
		if left < minSearch {
			a.timedOut = true
			break
		}
		v := &nodeResult{node: node}
		v.found, v.refusal = allocate(ctx, allocator, node, q.extended.appendTo(q.claims, node), left/2)
		a.nodes[node.Name] = v
		if v.refusal == nil || ctx.Err() != nil {
			break
		}
	}
	return a
}

// validFor returns the result for a node if it is still valid with the current devices and allocations.
func (a *searchResult) validFor(n *corev1.Node, now view) (found []resourcev1.AllocationResult, no *framework.Status) {
	v := a.nodes[n.Name]
	switch {
	case v == nil && a.timedOut && now.devicesVersion == a.view.devicesVersion && now.freed == a.view.freed:
		return nil, timedOut
	case v == nil || now.devicesVersion != a.view.devicesVersion || !maps.Equal(v.node.Labels, n.Labels):
		return nil, nil
	case v.refusal == nil && now.stillFree(v.found, a.view):
		return v.found, nil
	case v.refusal != nil && now.freed == a.view.freed:
		return nil, v.refusal
	}
	return nil, nil
}

// view is the allocated devices at one moment, with the values of Tracker.freed and Tracker.devicesVersion.
type view struct {
	taken                 structured.AllocatedState
	freed, devicesVersion int64
}

// stillFree reports whether an allocation that was possible at the earlier view still is: no other device of its pools
// was allocated since. Devices of a pool may share counters, so it is not enough that the same devices are free.
func (v view) stillFree(found []resourcev1.AllocationResult, earlier view) bool {
	type pool struct{ driver, name string }
	pools := map[pool]bool{}
	for i := range found {
		for j := range found[i].Devices.Results {
			r := &found[i].Devices.Results[j]
			pools[pool{r.Driver, r.Pool}] = true
		}
	}
	for id := range v.taken.AllocatedDevices {
		if pools[pool{id.Driver.String(), id.Pool.String()}] && !earlier.taken.AllocatedDevices.Has(id) {
			return false
		}
	}
	for id := range v.taken.AllocatedSharedDeviceIDs {
		if pools[pool{id.Driver.String(), id.Pool.String()}] && !earlier.taken.AllocatedSharedDeviceIDs.Has(id) {
			return false
		}
	}
	return true
}
