// SPDX-License-Identifier: Apache-2.0

// Package queue is the scheduling queue: it holds the pods that wait for a node. The scheduler's loop pops the pod that
// Less orders first, and returns it with the result of the attempt. The scheduler's event handlers add pods and report
// cluster events. An event makes an unschedulable pod ready again only if a QueueingHint of a plugin that refused the
// pod reports that the event may help.
//
// The names in kube-scheduler: active is activeQ, backoff is backoffQ, unschedulable and
// gated are unschedulablePods.
//
//	       Set                    Pop           Assumed, Done: bound
//	  +-----------> active ---------------> in flight ----------> (gone)
//	  |               ^  ^                   |    |
//	  | gate opened   |  | time is up        |    | Retry (an error)
//	gated             |  +---- backoff <-----|----+
//	                  |          ^           | Unschedulable
//	                  |          | event     v
//	                  +----------+---- unschedulable (5 minutes at most)
//
// A pod in flight is in its scheduling cycle. Events during this cycle are kept, because one of them may make the pod
// schedulable. Between Assumed and Done the pod is in its binding cycle. The pods of a pod group wait together and are
// popped together (group.go). The scheduler has a second Queue for pods that HTTP extenders are interested in.
//
// The queue never reads nodes and never calls the API server. It sets a timer only while a pod waits for a point in
// time.
package queue

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Config sets the queue's times; zero values mean the defaults in brackets.
type Config struct {
	InitialBackoff time.Duration // [1 s] after the first failure, doubling
	MaxBackoff     time.Duration // [10 s]
	Flush          time.Duration // [5 min] an unschedulable pod is tried again after this time even without an event
	// Less orders the pods that are ready; it must be set.
	Less func(a, b *framework.QueuedPod) bool
	// Profiles are the rules by spec.schedulerName. Rules apply to pods with any other scheduler name.
	Rules    Rules
	Profiles map[string]Rules
	// Entered is called when a pod enters one of the queue's places, with the reason ("PodAdd", an event's label, ...).
	// May be nil. The lock is not held during the call. It must be quick.
	Entered func(pod *state.PodInfo, why string, to Place, at time.Time)
	// Groups: the pods of a pod group wait together and are popped together.
	Groups bool
}

// Rules are the parts of a profile that the queue uses.
type Rules struct {
	// Gates are the PreEnqueue plugins. Hints are the registered events with their QueueingHints, by plugin: they may
	// make a pod schedulable that the plugin refused. For a plugin that is not in Hints every event may.
	Gates []framework.Weighted
	Hints map[string][]framework.ClusterEventWithHint
}

// Item is a pod in the queue. The scheduling loop that popped it may read it until it calls Done, Unschedulable or
// Retry.
type Item struct {
	framework.QueuedPod

	queue     *Queue
	rules     *Rules
	refusedBy []string             // plugins that refused the pod in its last attempt
	interests framework.EventKinds // the event kinds that these plugins registered
	where     where
	pos       int        // in its heap
	hintClass *hintClass // while it is unschedulable
	classPos  int        // in hintClass.items
	due       time.Time
	gatedBy   string
	// The failed attempts, by countFailure.
	refusals, errors int
	// While the pod is in flight: the number of the first event since Pop, the pod's newest version, and whether it was
	// deleted.
	firstEvent int64
	update     *state.PodInfo
	deleted    bool
	forced     bool  // Activate was called while the pod was in flight, or it missed events: try it again in any case
	assumedSeq int64 // Queue.seq at the call of Assumed
	// Pod groups: group is the group of a member. The group's head (see group.go) has headOf and key instead. While the
	// head is in flight, popped holds the members that were popped with it.
	group, headOf *podGroup
	key           state.GroupKey
	popped        []*Item
}

// Queue returns the queue that holds the item.
func (it *Item) Queue() *Queue { return it.queue }

type where int

const (
	nowhere where = iota // gated, or not in the queue
	inActive
	inBackoff
	inErrors
	inUnschedulable
	inFlight
	inBinding
	inGroup
)

// Queue is the scheduling queue. It is safe for concurrent use.
type Queue struct {
	cfg Config

	mu          sync.Mutex
	items       map[types.UID]*Item
	groups      map[state.GroupKey]*podGroup
	heaps       heaps
	hintClasses hintClasses
	gated       gatedItems
	events      eventLog
	wake        chan struct{} // closed and replaced when something became ready
	timer       *time.Timer
	closed      bool
	unreported  []entered // reported to Entered once the lock is released
}

type entered struct {
	pod *state.PodInfo
	why string
	to  Place
	at  time.Time
}

// New returns an empty queue.
func New(cfg Config) *Queue {
	if cfg.InitialBackoff == 0 {
		cfg.InitialBackoff = time.Second
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = 10 * time.Second
	}
	if cfg.Flush == 0 {
		cfg.Flush = 5 * time.Minute
	}
	if cfg.Entered == nil {
		cfg.Entered = func(*state.PodInfo, string, Place, time.Time) {}
	}
	return &Queue{
		cfg:         cfg,
		items:       map[types.UID]*Item{},
		gated:       gatedItems{},
		hintClasses: hintClasses{byKey: map[string]*hintClass{}},
		groups:      map[state.GroupKey]*podGroup{},
		wake:        make(chan struct{}),
		heaps:       newHeaps(cfg.Less),
	}
}

// Set adds or updates a pod.
func (q *Queue) Set(pod *corev1.Pod) {
	info := state.NewPodInfo(pod)
	q.mu.Lock()
	defer q.unlock()
	it, ok := q.items[pod.UID]
	if !ok {
		it = &Item{QueuedPod: framework.QueuedPod{Pod: info, First: time.Now()}, queue: q, rules: q.cfg.rulesOf(pod)}
		q.items[pod.UID] = it
		if m := q.groupLocked(pod); m != nil {
			q.addMemberLocked(m, it)
		} else if q.gated.gates(it) {
			q.unreported = append(q.unreported, entered{info, "PodAdd", Gated, it.First})
		} else {
			q.activateLocked(it, "PodAdd")
		}
		return
	}
	old := it.Pod.Pod
	switch it.where {
	case inFlight, inBinding:
		// The attempt goes on with the previous pod.
		if it.update = info; podUpdated(old, pod) {
			q.events.add(framework.Event{Kinds: framework.UnscheduledPodUpdate, OldPod: old, NewPod: pod})
		}
	case nowhere: // gated
		it.Pod = info
		switch {
		case q.gated.gates(it):
		case it.group != nil:
			it.group.setReady(it)
			q.requeueGroupLocked(it.group, "PodGatesOpened")
		default:
			q.activateLocked(it, "PodGatesOpened")
		}
	case inGroup:
		q.updateMemberLocked(it, old, pod, info)
	case inUnschedulable:
		it.Pod = info
		if !podUpdated(old, pod) {
			return
		}
		if e := (framework.Event{Kinds: framework.UnscheduledPodUpdate, OldPod: old, NewPod: pod}); it.helpedBy(&e) {
			q.leaveLocked(it)
			q.requeueLocked(it, e.Label())
			return
		}
		q.hintClasses.leave(it)
		q.hintClasses.join(it)
	default:
		it.Pod = info
		q.heaps.at(it.where).fix(it)
	}
}

// Delete removes a pod that was deleted or has a node.
func (q *Queue) Delete(uid types.UID) {
	q.mu.Lock()
	defer q.unlock()
	it, ok := q.items[uid]
	if !ok {
		return
	}
	delete(q.items, uid)
	delete(q.gated, it)
	if it.group != nil {
		q.removeMemberLocked(it)
	}
	if it.where == inFlight || it.where == inBinding {
		it.deleted = true
		return
	}
	q.leaveLocked(it)
}

// Pop waits for a pod and returns the first in Less order. The caller must end its attempt with Done, Unschedulable or
// Retry, or for the head of a group with FinishGroup. If active is empty, Pop takes a pod from backoff before its
// backoff is over, but not a pod whose attempt ended in an error. It returns nil when ctx is done.
func (q *Queue) Pop(ctx context.Context) *Item {
	for {
		q.mu.Lock()
		it := q.heaps.active.pop()
		if it == nil {
			it = q.popBackoffLocked()
		}
		if it != nil {
			it.where = inFlight
			it.deleted = false
			it.forced = false
			it.Attempts++
			it.firstEvent = q.events.begin(1)
			if it.headOf != nil {
				q.popMembersLocked(it)
			}
			q.unlock()
			return it
		}
		wake := q.wake
		q.setTimerLocked()
		q.unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// popBackoffLocked takes a pod out of backoff when active is empty.
func (q *Queue) popBackoffLocked() *Item {
	q.flushLocked()
	if it := q.heaps.active.pop(); it != nil {
		return it
	}
	it := q.heaps.backoff.pop()
	if it != nil {
		it.Since = time.Now()
		q.reportLocked(it, "BackoffCutShort", Active, it.Since)
	}
	return it
}

// Assumed ends the scheduling cycle of a pod that got a node. The binding cycle follows: Done ends it if it succeeded,
// Retry or Unschedulable if it failed.
func (q *Queue) Assumed(it *Item) {
	q.mu.Lock()
	defer q.unlock()
	q.endFlightLocked(it)
	it.where = inBinding
	it.assumedSeq = q.events.seq
}

// Done removes a popped pod that is bound or was deleted.
func (q *Queue) Done(it *Item) {
	q.mu.Lock()
	defer q.unlock()
	q.endFlightLocked(it)
	if q.items[it.Pod.Pod.UID] == it {
		delete(q.items, it.Pod.Pod.UID)
		if it.group != nil {
			q.removeMemberLocked(it)
		}
	}
}

// Unschedulable returns a popped pod to the queue; refusedBy are the plugins that refused it. The pod goes to backoff
// if an event during the attempt may help it, else to unschedulable.
func (q *Queue) Unschedulable(it *Item, refusedBy []string) {
	q.mu.Lock()
	defer q.unlock()
	was := it.where
	had := it.Pod.Pod
	missed := q.endFlightLocked(it)
	if it.deleted {
		return
	}
	if it.group != nil {
		q.requeueMemberLocked(it)
		return
	}
	it.refusedBy = refusedBy
	it.Flushed = false
	it.interests = it.rules.interests(refusedBy)
	it.due = time.Now().Add(q.cfg.backoffOf(it.countFailure(false)))
	if was == inBinding {
		// Events are not kept during the binding cycle, which may take minutes. So only their kinds are compared,
		// without the hints.
		if k := q.events.kindsSince(it.assumedSeq) & it.interests; k != 0 || podUpdated(had, it.Pod.Pod) {
			q.requeueLocked(it, attemptFailed)
			return
		}
	}
	for i := range missed {
		if it.helpedBy(&missed[i]) {
			q.requeueLocked(it, missed[i].Label())
			return
		}
	}
	if it.forced {
		q.requeueLocked(it, forceActivate)
		return
	}
	it.Since = time.Now()
	q.pushLocked(it, inUnschedulable, attemptFailed)
	q.setTimerLocked()
}

// Retry returns a popped pod, whose attempt ended in an error, to the queue. The pod is tried again after its backoff.
func (q *Queue) Retry(it *Item) {
	q.mu.Lock()
	defer q.unlock()
	q.endFlightLocked(it)
	if it.deleted {
		return
	}
	if it.group != nil {
		q.requeueMemberLocked(it)
		return
	}
	it.due = time.Now().Add(q.cfg.backoffOf(it.countFailure(true)))
	q.pushLocked(it, inErrors, attemptFailed)
	q.setTimerLocked()
}

// endFlightLocked takes an item out of flight and returns the events since it was popped, which are valid as long as
// the lock is held.
func (q *Queue) endFlightLocked(it *Item) []framework.Event {
	flew := it.where == inFlight
	it.where = nowhere
	if it.update != nil {
		it.Pod = it.update
		it.update = nil
	}
	if !flew {
		return nil
	}
	missed, all := q.events.end(it.firstEvent)
	it.forced = it.forced || !all
	return missed
}

// OnEvent moves the pods that a cluster event may help to active or backoff.
func (q *Queue) OnEvent(event framework.Event) {
	if event.Kinds == 0 {
		return
	}
	q.mu.Lock()
	defer q.unlock()
	q.events.add(event)
	q.events.count(event.Kinds)
	for _, it := range q.hintClasses.helpedBy(&event, q.items) {
		q.leaveLocked(it)
		q.requeueLocked(it, event.Label())
	}
	q.recheckGatesLocked(&event)
}

// helpedBy reports whether the event may make an item schedulable, according to the QueueingHints of the plugins that
// refused it.
func (it *Item) helpedBy(e *framework.Event) bool {
	if it.headOf != nil {
		return it.headOf.helpedBy(e)
	}
	return it.helpedAs(it, e)
}

// helpedAs is helpedBy for one pod. It uses the refusing plugins of by, which is the pod itself or the head of its
// group.
func (it *Item) helpedAs(by *Item, event *framework.Event) bool {
	if event.Kinds&framework.UnscheduledPodUpdate != 0 && (event.NewPod == nil || event.NewPod.UID != it.Pod.Pod.UID) {
		return false
	}
	if event.Kinds == framework.AssignedPodDelete && event.OldPod != nil && event.OldPod.UID == it.Pod.Pod.UID {
		return false // the event is about the pod's own resources
	}
	for _, name := range by.refusedBy {
		hints, ok := by.rules.Hints[name]
		if !ok {
			return true
		}
		for i := range hints {
			if h := &hints[i]; h.Match(event) && (h.QueueingHintFn == nil || h.QueueingHintFn(it.Pod, event)) {
				return true
			}
		}
	}
	return len(by.refusedBy) == 0
}

func (c *Config) rulesOf(pod *corev1.Pod) *Rules {
	if r, ok := c.Profiles[pod.Spec.SchedulerName]; ok {
		return &r
	}
	return &c.Rules
}

// interests returns the event kinds that may help a pod which these plugins refused.
func (r *Rules) interests(plugins []string) framework.EventKinds {
	if len(plugins) == 0 {
		return framework.AnyKind
	}
	var k framework.EventKinds
	for _, name := range plugins {
		hints, ok := r.Hints[name]
		if !ok {
			return framework.AnyKind
		}
		for _, h := range hints {
			k |= h.Kinds
		}
	}
	return k
}

// WaitsFor returns the event kinds that may help a pod which these plugins refused.
func (q *Queue) WaitsFor(pod *corev1.Pod, refusedBy []string) framework.EventKinds {
	return q.cfg.rulesOf(pod).interests(refusedBy)
}
