// SPDX-License-Identifier: Apache-2.0

// Package queue holds the pods that wait for a node. The scheduling loop pops the most
// important one; event handlers add pods and report what happened in the cluster, which
// moves pods back only when a plugin that refused them says that the event may help.
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
// A pod in flight is being tried: events that happen meanwhile are kept for it, since one of them may make it fit. Between Assumed and Done
// it is in binding. The pods of a pod group wait and fly as one (group.go). The scheduler has a second queue for pods about which HTTP
// extenders are asked.
//
// It never looks at nodes and never calls the server. With nothing to wait for it sets no timer.
package queue

import (
	"context"
	"slices"
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
	Flush          time.Duration // [5 min] an unschedulable pod is tried again after this even without an event
	// Less orders the pods that are ready; it must be set.
	Less func(a, b *framework.QueuedPod) bool
	// Profiles are the rules for pods, by the scheduler that they name. Rules are for pods of any other scheduler name.
	Rules    Rules
	Profiles map[string]Rules
	// Entered is called when a pod enters one of the queue's places, with the reason ("PodAdd", an event's label, ...). May be nil.
	// It must be quick.
	Entered func(pod *state.PodInfo, why string, to Place, at time.Time)
	// Groups has the pods of a pod group wait, and be tried, together.
	Groups bool
}

// Rules are what a profile's plugins say of waiting pods.
type Rules struct {
	// Gates keep pods out. Hints say, by plugin, which events may make a pod fit that the plugin refused. For a plugin that is not in Hints
	// every event may.
	Gates []framework.PreEnqueuer
	Hints map[string][]framework.ClusterEventWithHint
}

// Item is a waiting pod. The loop that popped it may read it until it gives it back.
type Item struct {
	framework.QueuedPod

	home      *Queue
	rules     *Rules
	refusedBy []string
	interests framework.Kinds // union of what the refusing plugins wait for
	where     where
	pos       int    // in its heap
	alike     *alike // while it is unschedulable
	place     int    // in alike
	due       time.Time
	gatedBy   string
	// While the pod is in flight: the number of the first event since Pop, the pod's newest version, and whether it is gone.
	popped  int64
	newer   *state.PodInfo
	removed bool
	recall  bool  // Wake was called meanwhile
	assumed int64 // how many events there had been when it got its node
	// Of pod groups: of is the group of a pod. The group's head (see group.go) has leads and key instead, and in flight riders: the group's
	// pods that were popped with it.
	of, leads *members
	key       state.GroupKey
	riders    []*Item
}

// Home is the queue that the pod came from.
func (it *Item) Home() *Queue { return it.home }

type where int

const (
	nowhere where = iota
	inActive
	inBackoff
	inErrors
	inUnschedulable
	inFlight
	inBinding
	inGroup
)

// Queue is safe for use from several goroutines.
type Queue struct {
	cfg Config

	mu      sync.Mutex
	items   map[types.UID]*Item
	groups  map[state.GroupKey]*members
	active  heap // the most important first
	backoff heap // the first to be due first
	errors  heap // likewise: those that wait because something went wrong
	refused heap // those that wait for an event, the longest waiting first
	// waited are the interests of all that are in refused, and perhaps of some that have left: other kinds of events help none of them.
	waited framework.Kinds
	// kinds are the pods in refused, together those whom the same events help.
	kinds  map[string]*alike
	key    []byte
	flying int
	// gated are the pods behind gates that events may open.
	gated map[*Item]struct{}
	// Events since the oldest pod in flight was popped; the first has number base.
	events []framework.Event
	base   int64
	// Of each kind of events the number of the last, of seq that there were.
	seq    int64
	latest [kindsKnown]int64
	wake   chan struct{} // closed and replaced when something became ready
	timer  *time.Timer
	closed bool
	news   []entered // reported to Entered once the lock is released
}

const kindsKnown = 32 // as many as framework.Kinds has bits

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
		cfg: cfg, items: map[types.UID]*Item{}, gated: map[*Item]struct{}{}, kinds: map[string]*alike{}, groups: map[state.GroupKey]*members{}, wake: make(chan struct{}), active: heap{less: func(a, b *Item) bool { return cfg.Less(&a.QueuedPod, &b.QueuedPod) }},
		backoff: heap{less: dueFirst}, errors: heap{less: dueFirst}, refused: heap{less: waitsLonger},
	}
}

func dueFirst(a, b *Item) bool { return a.due.Before(b.due) }

func waitsLonger(a, b *Item) bool { return a.Since.Before(b.Since) }

// Set adds or updates a pod.
func (q *Queue) Set(pod *corev1.Pod) {
	info := state.NewPodInfo(pod)
	q.mu.Lock()
	defer q.unlock()
	it, ok := q.items[pod.UID]
	if !ok {
		it = &Item{QueuedPod: framework.QueuedPod{Pod: info, First: time.Now()}, home: q, rules: q.rulesOf(pod)}
		q.items[pod.UID] = it
		if m := q.groupLocked(pod); m != nil {
			q.addLocked(m, it)
		} else if q.gatedLocked(it) {
			q.news = append(q.news, entered{info, "PodAdd", Gated, it.First})
		} else {
			q.activateLocked(it, "PodAdd")
		}
		return
	}
	old := it.Pod.Pod
	switch it.where {
	case inFlight, inBinding:
		// The attempt goes on with the pod as it was.
		if it.newer = info; matters(old, pod) {
			q.noteLocked(framework.Event{Kinds: framework.Self, OldPod: old, NewPod: pod})
		}
	case nowhere: // gated
		it.Pod = info
		switch {
		case q.gatedLocked(it):
		case it.of != nil:
			q.readyLocked(it)
			q.joinLocked(it.of, "PodGatesOpened")
		default:
			q.activateLocked(it, "PodGatesOpened")
		}
	case inGroup:
		q.changedLocked(it, old, pod, info)
	case inUnschedulable:
		it.Pod = info
		if !matters(old, pod) {
			return
		}
		if e := (framework.Event{Kinds: framework.Self, OldPod: old, NewPod: pod}); q.helpsLocked(it, &e) {
			q.leaveLocked(it)
			q.againLocked(it, e.Label())
			return
		}
		q.leaveAlikeLocked(it)
		q.joinAlikeLocked(it)
	default:
		it.Pod = info
		q.heapOf(it.where).fix(it)
	}
}

// Delete removes a pod: it was deleted or has a node.
func (q *Queue) Delete(uid types.UID) {
	q.mu.Lock()
	defer q.unlock()
	it, ok := q.items[uid]
	if !ok {
		return
	}
	delete(q.items, uid)
	delete(q.gated, it)
	if it.of != nil {
		q.lostLocked(it)
	}
	if it.where == inFlight || it.where == inBinding {
		it.removed = true
		return
	}
	q.leaveLocked(it)
}

// Pop waits for the most important pod that is ready, and hands it out. It must be given back by Done, Unschedulable or Retry.
// When no pod is ready, one whose backoff is still running is taken unless it failed by an error. It returns nil once ctx is done.
func (q *Queue) Pop(ctx context.Context) *Item {
	for {
		q.mu.Lock()
		it := q.active.pop()
		if it == nil {
			it = q.earlyLocked()
		}
		if it != nil {
			it.where, it.removed, it.recall = inFlight, false, false
			it.Attempts++
			it.popped = q.base + int64(len(q.events))
			q.flying++
			if it.leads != nil {
				q.boardLocked(it)
			}
			q.unlock()
			return it
		}
		wake := q.wake
		q.armLocked()
		q.unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// earlyLocked takes a pod out of backoff when there is nothing better to do.
func (q *Queue) earlyLocked() *Item {
	q.expireLocked()
	if it := q.active.pop(); it != nil {
		return it
	}
	it := q.backoff.pop()
	if it != nil {
		it.Since = time.Now()
		q.enterLocked(it, "BackoffCutShort", Active, it.Since)
	}
	return it
}

// Assumed ends a pod's flight when it has been given a node, but its binding may still fail: then Retry takes it back, else Done ends it.
func (q *Queue) Assumed(it *Item) {
	q.mu.Lock()
	defer q.unlock()
	q.landLocked(it)
	it.where, it.assumed = inBinding, q.seq
}

// Done removes a pod that was popped: it is bound, or was deleted.
func (q *Queue) Done(it *Item) {
	q.mu.Lock()
	defer q.unlock()
	q.landLocked(it)
	if q.items[it.Pod.Pod.UID] == it {
		delete(q.items, it.Pod.Pod.UID)
		if it.of != nil {
			q.lostLocked(it)
		}
	}
}

// Unschedulable gives back a pod that plugins refused. If something that may help them happened meanwhile it backs off, else it waits.
func (q *Queue) Unschedulable(it *Item, refusedBy []string) {
	q.mu.Lock()
	defer q.unlock()
	was, had := it.where, it.Pod.Pod
	missed := q.landLocked(it)
	if it.removed {
		return
	}
	if it.of != nil {
		q.returnLocked(it)
		return
	}
	it.refusedBy, it.interests = refusedBy, it.rules.interests(refusedBy)
	it.due = time.Now().Add(q.backoffOf(it))
	if was == inBinding {
		// It may have waited for minutes, for which events are not kept: one of a kind that may help is enough.
		if k := q.sinceLocked(it.assumed) & it.interests; k != 0 || matters(had, it.Pod.Pod) {
			q.againLocked(it, attemptFailed)
			return
		}
	}
	for i := range missed {
		if q.helpsLocked(it, &missed[i]) {
			q.againLocked(it, missed[i].Label())
			return
		}
	}
	if it.recall {
		q.againLocked(it, woken)
		return
	}
	it.Since = time.Now()
	q.putLocked(it, inUnschedulable, attemptFailed)
	q.armLocked()
}

// Retry gives back a pod whose attempt ended in an error; it is tried again after its backoff.
func (q *Queue) Retry(it *Item) {
	q.mu.Lock()
	defer q.unlock()
	q.landLocked(it)
	if it.removed {
		return
	}
	if it.of != nil {
		q.returnLocked(it)
		return
	}
	it.due = time.Now().Add(q.backoffOf(it))
	q.putLocked(it, inErrors, attemptFailed)
	q.armLocked()
}

// landLocked ends a flight and returns the events the pod has missed.
func (q *Queue) landLocked(it *Item) []framework.Event {
	flew := it.where == inFlight
	it.where = nowhere
	if it.newer != nil {
		it.Pod, it.newer = it.newer, nil
	}
	if !flew {
		return nil
	}
	if it.popped < q.base {
		it.popped, it.recall = q.base, true
	}
	missed := slices.Clone(q.events[it.popped-q.base:])
	if q.flying--; q.flying == 0 {
		q.base += int64(len(q.events))
		clear(q.events)
		q.events = q.events[:0]
	}
	return missed
}

// Happened reports a change in the cluster.
func (q *Queue) Happened(e framework.Event) {
	if e.Kinds == 0 {
		return
	}
	q.mu.Lock()
	defer q.unlock()
	q.noteLocked(e)
	q.seq++
	for i := range q.latest {
		if e.Kinds&(1<<i) != 0 {
			q.latest[i] = q.seq
		}
	}
	for _, it := range q.helpedLocked(&e) {
		q.leaveLocked(it)
		q.againLocked(it, e.Label())
	}
	q.openLocked(&e)
}

// maxEvents bounds the events that are kept for pods in flight: one may fly for long, when extenders are asked. Who has missed more is tried again.
const maxEvents = 50_000

func (q *Queue) noteLocked(e framework.Event) {
	if q.flying == 0 {
		return
	}
	if len(q.events) >= maxEvents {
		q.base += int64(len(q.events))
		clear(q.events)
		q.events = q.events[:0]
	}
	q.events = append(q.events, e)
}

// helpsLocked asks the plugins that refused a pod whether an event is worth a try.
func (q *Queue) helpsLocked(it *Item, e *framework.Event) bool {
	if it.leads != nil {
		return q.helpsGroupLocked(it, e)
	}
	return q.helpsPodLocked(it, it, e)
}

// helpsPodLocked asks the plugins that refused by, which is the pod itself or stands for its group.
func (q *Queue) helpsPodLocked(it, by *Item, e *framework.Event) bool {
	if e.Kinds&framework.Self != 0 && (e.NewPod == nil || e.NewPod.UID != it.Pod.Pod.UID) {
		return false
	}
	if e.Kinds == framework.PodDelete && e.OldPod != nil && e.OldPod.UID == it.Pod.Pod.UID {
		return false // the pod itself freed them
	}
	for _, name := range by.refusedBy {
		hints, ok := by.rules.Hints[name]
		if !ok {
			return true
		}
		for i := range hints {
			if h := &hints[i]; h.About(e) && (h.Worth == nil || h.Worth(it.Pod, e)) {
				return true
			}
		}
	}
	return len(by.refusedBy) == 0
}

// sinceLocked are the kinds of events after the one of that number.
func (q *Queue) sinceLocked(seq int64) (k framework.Kinds) {
	for i, last := range q.latest {
		if last > seq {
			k |= 1 << i
		}
	}
	return k
}

func (q *Queue) rulesOf(pod *corev1.Pod) *Rules {
	if r, ok := q.cfg.Profiles[pod.Spec.SchedulerName]; ok {
		return &r
	}
	return &q.cfg.Rules
}

// interests are the kinds of events that may help pods which those plugins refused.
func (r *Rules) interests(plugins []string) framework.Kinds {
	if len(plugins) == 0 {
		return framework.AnyKind
	}
	var k framework.Kinds
	for _, name := range plugins {
		hints, ok := r.Hints[name]
		if !ok {
			return framework.AnyKind
		}
		for _, h := range hints {
			k |= h.On
		}
	}
	return k
}

// Waits returns the kinds of events that the plugins that refused a pod wait for.
func (q *Queue) Waits(pod *corev1.Pod, refusedBy []string) framework.Kinds {
	return q.rulesOf(pod).interests(refusedBy)
}
