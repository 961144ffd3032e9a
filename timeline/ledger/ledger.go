// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps marks: the facts about pods and their owners. cluster registers Listen with every component's
// recorder and serves Handler; remote agents send marks with a Forwarder. Marks are in memory only, with a size limit,
// and lost when the server stops. A ledger never calls a component and never slows one down: Listen copies a mark and
// returns. It concludes nothing and has no words: timeline/story makes steps of its records, timeline/text sentences.
package ledger

import (
	"container/list"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// DefaultLimit is the default number of remembered pods.
const DefaultLimit = 10000

// Limits of one record. Of a long story the first and the last marks are kept.
const (
	keepFirst  = 96
	keepLast   = 64
	keepOwners = 2000
)

// Config limits what is remembered.
type Config struct {
	// Limit is the number of pods, the most recently changed ones; 0: DefaultLimit.
	Limit int
	// DecisionBytes limits the memory of complete scheduler decisions; 0: DefaultDecisionBytes.
	DecisionBytes int
	Log           *slog.Logger
}

// Ledger stores marks. It is safe for concurrent use.
type Ledger struct {
	log   *slog.Logger
	rates rates
	since time.Time // when it was made: earlier marks are unknown

	mu     sync.Mutex
	pods   recordCache
	owners recordCache
	// namespaces has the deletions of namespaces, by name.
	namespaces recordCache
	names      map[string]string // namespace/name of a pod -> UID of the latest with that name
	topics     map[string]*topic // namespace/name -> followers
	// watchers are those of stored deliveries. resolved records, by namespace/name, when the names of Services became
	// resolvable.
	watchers map[watcher]*watcher
	resolved recordCache
	decided  decisionLog
	timer    bool // a call of rest is scheduled
}

// ErrUnknown is returned for a pod without marks.
var ErrUnknown = errors.New("nothing is remembered about it: it does not exist, or came to be before the server " +
	"started")

// New returns an empty ledger; it starts nothing.
func New(cfg Config) *Ledger {
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	if cfg.DecisionBytes <= 0 {
		cfg.DecisionBytes = DefaultDecisionBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Ledger{
		log:        cfg.Log,
		since:      time.Now(),
		pods:       newRecordCache(cfg.Limit),
		owners:     newRecordCache(keepOwners),
		namespaces: newRecordCache(keepOwners),
		names:      map[string]string{},
		topics:     map[string]*topic{},
		watchers:   map[watcher]*watcher{},
		resolved:   newRecordCache(keepOwners),
		decided:    newDecisionLog(cfg.DecisionBytes),
	}
}

// Listen implements event.Listener.
func (t *Ledger) Listen(mk event.Event) {
	if mk.Subject.Name == "" {
		return
	}
	if mk.Subject.Resource == "pods" {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.podLocked(mk)
		return
	}
	if mk.Step == event.StepResolvable {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.resolvedLocked(mk)
		return
	}
	if mk.Subject.Resource == "namespaces" && story.Deletes(mk) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.namespaces.get(mk.Subject.Name, mk.Subject, func(*record) {}).add(mk)
		return
	}
	if _, ok := story.OwnerKinds[mk.Subject.Resource]; !ok || mk.Subject.UID == "" || routine(mk) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.owners.get(mk.Subject.UID, mk.Subject, func(*record) {})
	t.addLocked(r, mk)
}

// addLocked adds a mark to the record r.
func (t *Ledger) addLocked(r *record, m event.Event) {
	if r.began.IsZero() || m.At.Before(r.began) {
		r.began = m.At
	}
	if d, ok := m.Detail.(*event.Delivery); ok {
		t.deliveredLocked(r, m, d)
		return
	}
	r.add(m)
	t.restLaterLocked()
}

// resolvedLocked records the first DNS server that answers for a Service's name.
func (t *Ledger) resolvedLocked(m event.Event) {
	r := t.resolved.get(m.Subject.Namespace+"/"+m.Subject.Name, m.Subject, func(*record) {})
	if len(r.first) == 0 {
		t.addLocked(r, m)
	}
}

// routine reports whether an owner's mark can be left out: a status write leads to no pod.
func routine(m event.Event) bool {
	r, ok := m.Detail.(*event.Request)
	return ok && r.Subresource == "status"
}

func (t *Ledger) podLocked(mk event.Event) {
	name := mk.Subject.Namespace + "/" + mk.Subject.Name
	uid := mk.Subject.UID
	if uid == "" {
		if uid = t.names[name]; uid == "" {
			return // for example a refused create: there is no pod
		}
	}
	r := t.pods.get(uid, mk.Subject, func(gone *record) {
		key := gone.subject.Namespace + "/" + gone.subject.Name
		if t.names[key] == gone.uid {
			delete(t.names, key)
		}
	})
	if known := t.pods.of(t.names[name]); known == nil || known == r || !known.began.After(mk.At) {
		t.names[name] = uid
	}
	if d, ok := mk.Detail.(*decisions.Attempt); ok {
		t.preemptedLocked(&mk, d.Preemption)
		t.decided.set(&mk, d)
		mk.Detail = brief(d)
	}
	t.addLocked(r, mk)
	switch d := mk.Detail.(type) {
	case *event.Request:
		if d.OwnerUID != "" {
			r.owner = d.OwnerUID
		}
		if static := t.pods.of(d.MirrorOf); d.MirrorOf != "" && d.MirrorOf != uid {
			r.static = d.MirrorOf
			if static != nil {
				static.mirror = uid
			}
		}
	case *event.Bind:
		t.decided.bound(&mk, d)
		if mk.Err == "" {
			r.node = d.Node
		}
	}
	if mk.ReportedBy != "" && r.node == "" {
		r.node = mk.ReportedBy // a node's mark is only accepted for a pod bound to it
	}
	if topic := t.topics[name]; topic != nil {
		topic.wake()
	}
}

// preemptedLocked records in the victims' stories for which pod they are preempted.
func (t *Ledger) preemptedLocked(m *event.Event, p *decisions.Preemption) {
	if p == nil {
		return
	}
	for _, v := range p.Victims {
		if r := t.pods.of(t.names[v.Namespace+"/"+v.Name]); r != nil && r.began.Before(m.At) {
			r.leavesFor = m.Subject.Namespace + "/" + m.Subject.Name
		}
	}
}

// Pod returns what is kept about a pod and about its owners, nearest first; ErrUnknown if nothing is.
func (t *Ledger) Pod(namespace, name string) (*story.Record, []*story.Record, error) {
	pod, owners, err := t.snapshot(namespace, name)
	if err != nil {
		return nil, nil, err
	}
	// a clone is ordered without the lock
	above := make([]*story.Record, 0, len(owners))
	for _, o := range owners {
		above = append(above, o.exported())
	}
	out := pod.exported()
	out.RecordedSince = t.since
	return out, above, nil
}

// snapshot returns copies of the records of a pod and of its owners, nearest first.
func (t *Ledger) snapshot(namespace, name string) (pod *record, owners []*record, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.pods.of(t.names[namespace+"/"+name])
	if r == nil {
		return nil, nil, ErrUnknown
	}
	if mirror := t.pods.of(r.mirror); mirror != nil && mirror.subject.Name == r.subject.Name &&
		mirror.subject.Namespace == r.subject.Namespace {
		r = mirror
	}
	pod = r.clone()
	if d := t.decided.of(r.uid); d != nil {
		pod.decided = &d.Decided
	}
	if static := t.pods.of(r.static); static != nil && static.subject.Name == r.subject.Name &&
		static.subject.Namespace == r.subject.Namespace {
		pod.shows = static.clone()
	}
	for _, m := range pod.marks() {
		if d, ok := m.Detail.(*event.Reachable); ok {
			if s := t.resolved.of(namespace + "/" + d.Service); s != nil && !s.began.IsZero() {
				pod.names = append(pod.names, s.first[0])
			}
		}
	}
	if ns := t.namespaces.of(namespace); ns != nil {
		pod.namespace = ns.clone().marks()
	}
	const depth = 3
	for uid := r.owner; uid != "" && len(owners) < depth; {
		o := t.owners.of(uid)
		if o == nil {
			break
		}
		c := o.clone()
		owners = append(owners, c)
		uid = c.ownerUID()
	}
	return pod, owners, nil
}

// Pods is the number of remembered pods.
func (t *Ledger) Pods() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pods.records)
}

// topic wakes the followers of one pod.
type topic struct {
	followers int
	changed   chan struct{} // closed and replaced at each mark
}

func (p *topic) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Follow registers a follower of a pod. next returns a channel that is closed at the next mark; done ends it.
func (t *Ledger) Follow(namespace, name string) (next func() <-chan struct{}, done func()) {
	key := namespace + "/" + name
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.topics[key]
	if p == nil {
		p = &topic{changed: make(chan struct{})}
		t.topics[key] = p
	}
	p.followers++
	next = func() <-chan struct{} {
		t.mu.Lock()
		defer t.mu.Unlock()
		return p.changed
	}
	done = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if p.followers--; p.followers == 0 {
			delete(t.topics, key)
		}
	}
	return next, done
}

// recordCache is an LRU cache of records.
type recordCache struct {
	limit   int
	records map[string]*list.Element // by UID, of *record
	order   *list.List               // the most recently used first
}

func newRecordCache(limit int) recordCache {
	return recordCache{limit: limit, records: map[string]*list.Element{}, order: list.New()}
}

func (s *recordCache) of(uid string) *record {
	e, ok := s.records[uid]
	if !ok {
		return nil
	}
	r, _ := e.Value.(*record)
	return r
}

// get returns the record of a UID, creating it if needed, and drops the least recently used one above the limit.
func (s *recordCache) get(uid string, about event.Subject, dropped func(*record)) *record {
	if e, ok := s.records[uid]; ok {
		s.order.MoveToFront(e)
		r, _ := e.Value.(*record)
		return r
	}
	about.UID = uid
	r := &record{uid: uid, subject: about}
	s.records[uid] = s.order.PushFront(r)
	if s.order.Len() > s.limit {
		last := s.order.Back()
		gone, _ := last.Value.(*record)
		s.order.Remove(last)
		delete(s.records, gone.uid)
		dropped(gone)
	}
	return r
}

// record holds the marks of one object: the first ones and a ring buffer of the last.
type record struct {
	uid     string
	subject event.Subject
	owner   string // UID
	node    string // to which it was bound, not counting that node's own reports
	began   time.Time
	touched time.Time      // time of the last mark
	packed  packed         // the oldest part of first
	static  string         // UID of the static pod whose mirror pod this is
	mirror  string         // UID of this static pod's mirror pod
	shows   *record        // the static pod, in a snapshot
	names   []event.Event  // of Services that lead to the pod, in a snapshot
	decided *story.Decided // the last attempt, in a snapshot
	// namespace has the deletions of the pod's namespace, in a snapshot.
	namespace []event.Event
	// leavesFor is the pod, namespace/name, for which the scheduler preempts this one; empty: none.
	leavesFor string
	deliveries
	first   []event.Event
	last    []event.Event
	next    int // index in last
	dropped int
}

func (r *record) add(m event.Event) {
	r.touched = time.Now()
	switch {
	case r.packed.marks+len(r.first) < keepFirst:
		r.first = append(r.first, m)
	case len(r.last) < keepLast:
		r.last = append(r.last, m)
	default:
		r.last[r.next] = m
		r.next = (r.next + 1) % keepLast
		r.dropped++
	}
}

func (r *record) clone() *record {
	c := *r
	c.first = slices.Concat(r.packed.unpack(), r.first)
	c.last = slices.Clone(r.last)
	c.list = slices.Clone(r.list)
	c.packed = packed{}
	return &c
}

// exported is what a clone holds.
func (r *record) exported() *story.Record {
	return &story.Record{
		Subject:       r.subject,
		Marks:         r.marks(),
		Dropped:       r.dropped,
		DroppedEvents: r.left,
		Static:        r.shows != nil,
		LeavesFor:     r.leavesFor,
		Decided:       r.decided,
		Namespace:     r.namespace,
	}
}

// marks returns all marks of a clone ordered by start time.
func (r *record) marks() []event.Event {
	all := slices.Concat(r.first, r.last, r.deliveries.marks(r.subject))
	if r.shows != nil {
		all = append(all, r.shows.marks()...)
	}
	for _, m := range r.names {
		if !m.At.Before(r.began) { // else the name belonged to another pod before
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b event.Event) int { return a.At.Compare(b.At) })
	return all
}

// ownerUID returns the owner's UID; it works on a clone too.
func (r *record) ownerUID() string {
	for _, m := range slices.Concat(r.first, r.last) {
		if q, ok := m.Detail.(*event.Request); ok && q.OwnerUID != "" {
			return q.OwnerUID
		}
	}
	return ""
}
