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

	"keelson/scheduler/framework"
)

// Lane searches for devices beside the scheduling loop: a search that is not done within Config.InLoop is left to it, so that no other pod
// waits. It searches for one pod at a time, on the nodes where the loop ran out of time, until it finds devices on one of them. Then the pod
// is tried again, and its attempt goes by what the lane found as long as that is still true. It reads only what is never modified, and takes
// no device: Reserve does, in the loop.
//
//	Filter runs out of time -> want -> begin, when the attempt is over -> run -> finish -> the pod is woken -> recall
type Lane struct {
	LaneConfig
	news chan struct{} // capacity 1

	mu     sync.Mutex
	open   bool
	asked  map[types.UID]*question
	turns  []types.UID // whose question waits
	full   bool        // pods were turned away
	ranOut time.Time   // when an attempt last ran out of time
}

// LaneConfig is what a Lane works with.
type LaneConfig struct {
	Known *Known
	// Between runs what it is given between two attempts.
	Between func(func())
	// Waits tells whether a pod still waits for a node, and Wake has it tried again.
	Waits func(types.UID) bool
	Wake  func(types.UID)
}

const (
	// maxAsked bounds the pods that the lane knows of. One that has its answer makes room for another.
	maxAsked = 256
	// After an attempt that ran out of time the next ones have less of it, for a while: many hard pods hold up the loop no longer than one.
	sparingFor = time.Second
	sparing    = 5 * time.Millisecond
)

// question is one pod's.
type question struct {
	plugin *Plugin
	claims []*resourcev1.ResourceClaim
	extra  *extended
	nodes  []*corev1.Node // not looked at yet
	turn   bool           // it is among turns
	answer *answer        // nil: there was none yet
}

// answer is what the lane found out. It is not modified.
type answer struct {
	claims []*resourcev1.ResourceClaim
	view   view
	nodes  map[string]*verdict
	late   bool // there was no time for the others
}

// verdict is about one node.
type verdict struct {
	node  *corev1.Node
	found []resourcev1.AllocationResult
	no    *framework.Status
}

// NewLane makes a lane. Until Run is called nothing is left to it.
func NewLane(c LaneConfig) *Lane {
	return &Lane{LaneConfig: c, news: make(chan struct{}, 1), asked: map[types.UID]*question{}}
}

// Run searches until ctx is done.
func (l *Lane) Run(ctx context.Context) {
	l.mu.Lock()
	l.open = true
	l.mu.Unlock()
	for {
		select {
		case <-l.news:
		case <-ctx.Done():
			return
		}
		for uid, ok := l.next(); ok && ctx.Err() == nil; uid, ok = l.next() {
			var q *question
			l.Between(func() { q = l.begin(uid) })
			if q == nil {
				continue
			}
			l.finish(uid, q.run(ctx))
			if ctx.Err() == nil {
				l.Wake(uid)
			}
		}
	}
}

// isOpen tells whether searches may be left to the lane.
func (l *Lane) isOpen() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// budget is what an attempt may take in the loop, of the time that it may usually take.
func (l *Lane) budget(usual time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.ranOut) < sparingFor {
		return min(sparing, usual)
	}
	return usual
}

// want leaves a node to the lane. It returns what is told meanwhile.
func (l *Lane) want(s *podClaims, n *corev1.Node) *framework.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[s.pod.UID]
	if q == nil {
		l.ranOut = time.Now()
		if !l.roomLocked() {
			l.full = true
			return tooLong
		}
		q = &question{}
		l.asked[s.pod.UID] = q
	}
	if q.plugin != s.plugin || !same(q.claims, s.free) {
		q.plugin, q.claims, q.nodes = s.plugin, s.free, nil
	}
	q.extra = s.extended
	if !q.turn {
		q.turn = true
		l.turns = append(l.turns, s.pod.UID)
		select {
		case l.news <- struct{}{}:
		default:
		}
	}
	q.nodes = append(q.nodes, n)
	return searching
}

// roomLocked makes room for another pod, if there is none.
func (l *Lane) roomLocked() bool {
	for pod, q := range l.asked {
		if len(l.asked) < maxAsked {
			break
		}
		if !q.turn {
			delete(l.asked, pod)
		}
	}
	return len(l.asked) < maxAsked
}

// mayHelp tells whether an event of Searches is worth an attempt for a pod: it is about that pod, or about one whose place it may take.
func (l *Lane) mayHelp(pod, about types.UID) bool {
	if pod == about || l == nil {
		return pod == about
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full && l.asked[pod] == nil
}

// same tells whether claims are the same ones: what they ask for does not change.
func same(a, b []*resourcev1.ResourceClaim) bool {
	return slices.EqualFunc(a, b, func(a, b *resourcev1.ResourceClaim) bool { return a.UID == b.UID })
}

// drop forgets a pod: it has its devices.
func (l *Lane) drop(pod types.UID) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asked, pod)
}

func (l *Lane) next() (pod types.UID, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.turns) == 0 {
		return "", false
	}
	pod, l.turns = l.turns[0], l.turns[1:]
	return pod, true
}

// begin takes a pod's question, nil if nobody wants an answer any more.
func (l *Lane) begin(pod types.UID) *question {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[pod]
	if q == nil || !q.turn || !l.Waits(pod) {
		delete(l.asked, pod)
		return nil
	}
	todo := *q
	q.turn, q.nodes = false, nil
	return &todo
}

func (l *Lane) finish(pod types.UID, a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.asked[pod]; q != nil {
		q.answer = a
	}
	l.full = l.full && len(l.turns) > 0
}

// recall is the answer to a pod's question; nil: it is new to the lane.
func (l *Lane) recall(s *podClaims) *answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[s.pod.UID]
	if q == nil {
		return nil
	}
	if q.answer == nil || !same(q.answer.claims, s.free) {
		return &answer{} // the last search took too long: none is begun in the loop
	}
	return q.answer
}

// run searches on one node after the other until devices are found.
func (q *question) run(ctx context.Context) *answer {
	k := q.plugin.Known
	a := &answer{claims: q.claims, view: k.view(), nodes: map[string]*verdict{}}
	if q.answer != nil && same(q.answer.claims, q.claims) {
		for name, v := range q.answer.nodes { // what is still true
			if found, no := q.answer.of(v.node, a.view); found != nil || no != nil {
				a.nodes[name] = v
			}
		}
	}
	offered, err := k.allSlices()
	if err != nil {
		return a
	}
	allocator, err := structured.NewAllocator(ctx, features, a.view.taken, k, offered, q.plugin.cel)
	if err != nil {
		return a
	}
	until := time.Now().Add(q.plugin.Filter)
	for _, n := range q.nodes {
		if v := a.nodes[n.Name]; v != nil && v.node == n {
			continue
		}
		left := time.Until(until)
		if left < shortest {
			a.late = true
			break
		}
		v := &verdict{node: n}
		v.found, v.no, _ = allocate(ctx, allocator, n, q.extra.and(q.claims, n), left/2)
		a.nodes[n.Name] = v
		if v.no == nil || ctx.Err() != nil {
			break
		}
	}
	return a
}

// of is what the lane said of a node, as far as it is true with what is known now.
func (a *answer) of(n *corev1.Node, now view) (found []resourcev1.AllocationResult, no *framework.Status) {
	v := a.nodes[n.Name]
	switch {
	case v == nil && a.late && now.offers == a.view.offers && now.freed == a.view.freed:
		return nil, tooLong
	case v == nil || now.offers != a.view.offers || !maps.Equal(v.node.Labels, n.Labels):
		return nil, nil
	case v.no == nil && now.allows(v.found, a.view):
		return v.found, nil
	case v.no != nil && now.freed == a.view.freed:
		return nil, v.no
	}
	return nil, nil
}

// view is what was taken at one time, and how often until then devices were given back and slices and classes changed.
type view struct {
	taken         structured.AllocatedState
	freed, offers int64
}

// allows tells whether an allocation that was possible earlier still is: nothing else of its pools was taken since. Devices of a pool may
// share counters, so it is not enough that the same devices are free.
func (v view) allows(found []resourcev1.AllocationResult, earlier view) bool {
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
