// SPDX-License-Identifier: Apache-2.0

// Package timeline joins marks into the story of one pod: from the request that led to
// it, over every hand-off, to the first Ready, and why the scheduler chose its node.
// cluster registers Listen with every component's recorder and serves Handler; remote
// agents send their marks with a Forwarder. Stories live in memory, bounded, and are
// gone when the server stops. It never asks components anything and never slows one:
// Listen copies a mark into a ring and returns.
package timeline

import (
	"container/list"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"keelson/lib/mark"
)

// DefaultLimit is how many pods are remembered unless Config says otherwise.
const DefaultLimit = 10000

// Bounds of one record: of a pod that lives long the first and the last marks are kept.
const (
	keepFirst  = 96
	keepLast   = 64
	keepOwners = 2000
)

// Config says what to remember.
type Config struct {
	// Limit is the number of pods, those touched last; 0 means DefaultLimit.
	Limit int
	// DecisionBytes bounds the memory of the scheduler's whole decisions; 0 means DefaultDecisionBytes.
	DecisionBytes int
	Log           *slog.Logger
}

// Timeline remembers marks. Its methods may be called from any goroutine.
type Timeline struct {
	log   *slog.Logger
	rates rates

	mu     sync.Mutex
	pods   shelf
	owners shelf
	names  map[string]string // namespace/name of a pod -> UID of the latest with that name
	topics map[string]*topic // namespace/name -> who follows
	// watchers are those of remembered deliveries; resolved are the names of Services, by namespace/name, which lead to pods.
	watchers map[watcher]*watcher
	resolved shelf
	decided  ledger
	timer    bool // rest will be called
}

// ErrUnknown is returned for a pod that no mark has told of.
var ErrUnknown = errors.New("nothing is remembered about it: it does not exist, or came to be before the server started")

// New returns an empty timeline; it starts nothing.
func New(cfg Config) *Timeline {
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	if cfg.DecisionBytes <= 0 {
		cfg.DecisionBytes = DefaultDecisionBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Timeline{
		log: cfg.Log, pods: newShelf(cfg.Limit), owners: newShelf(keepOwners), names: map[string]string{}, topics: map[string]*topic{},
		watchers: map[watcher]*watcher{}, resolved: newShelf(keepOwners), decided: newLedger(cfg.DecisionBytes),
	}
}

// ownerKinds are the resources whose requests and reconciles begin a pod's story.
var ownerKinds = map[string]string{
	"replicasets": "ReplicaSet", "deployments": "Deployment", "replicationcontrollers": "ReplicationController",
	"statefulsets": "StatefulSet", "daemonsets": "DaemonSet", "jobs": "Job", "cronjobs": "CronJob",
}

// Listen is a mark.Listener.
func (t *Timeline) Listen(m mark.Mark) {
	if m.Subject.Name == "" {
		return
	}
	if m.Subject.Resource == "pods" {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.podLocked(m)
		return
	}
	if m.Step == mark.StepResolvable {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.resolvedLocked(m)
		return
	}
	if _, ok := ownerKinds[m.Subject.Resource]; !ok || m.Subject.UID == "" || routine(m) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.owners.get(m.Subject.UID, m.Subject, func(*record) {})
	t.addLocked(r, m)
}

// addLocked remembers a mark of r's object.
func (t *Timeline) addLocked(r *record, m mark.Mark) {
	if r.began.IsZero() || m.At.Before(r.began) {
		r.began = m.At
	}
	if d, ok := m.Detail.(*mark.Delivery); ok {
		t.deliveredLocked(r, m, d)
		return
	}
	r.add(m)
	t.restLaterLocked()
}

// resolvedLocked remembers the first server that answered for a Service's name.
func (t *Timeline) resolvedLocked(m mark.Mark) {
	r := t.resolved.get(m.Subject.Namespace+"/"+m.Subject.Name, m.Subject, func(*record) {})
	if len(r.first) == 0 {
		t.addLocked(r, m)
	}
}

// routine reports whether an owner's mark can be left out: a status write leads to no pod.
func routine(m mark.Mark) bool {
	r, ok := m.Detail.(*mark.Request)
	return ok && r.Subresource == "status"
}

func (t *Timeline) podLocked(m mark.Mark) {
	name := m.Subject.Namespace + "/" + m.Subject.Name
	uid := m.Subject.UID
	if uid == "" {
		if uid = t.names[name]; uid == "" {
			return // a refused create, say: there is no pod to tell of
		}
	}
	r := t.pods.get(uid, m.Subject, func(gone *record) {
		key := gone.subject.Namespace + "/" + gone.subject.Name
		if t.names[key] == gone.uid {
			delete(t.names, key)
		}
	})
	if known := t.pods.of(t.names[name]); known == nil || known == r || !known.began.After(m.At) {
		t.names[name] = uid
	}
	if d, ok := m.Detail.(*mark.Decision); ok {
		t.preemptedLocked(&m, d.Preemption)
		t.decided.set(&m, d)
		m.Detail = brief(d)
	}
	t.addLocked(r, m)
	switch d := m.Detail.(type) {
	case *mark.Request:
		if d.OwnerUID != "" {
			r.owner = d.OwnerUID
		}
		if static := t.pods.of(d.MirrorOf); d.MirrorOf != "" && d.MirrorOf != uid {
			r.static = d.MirrorOf
			if static != nil {
				static.mirror = uid
			}
		}
	case *mark.Bind:
		t.decided.bound(&m, d)
		if m.Err == "" {
			r.node = d.Node
		}
	}
	if m.ReportedBy != "" && r.node == "" {
		r.node = m.ReportedBy // the API said that the pod is bound to it, or the mark would not be here
	}
	if topic := t.topics[name]; topic != nil {
		topic.wake()
	}
}

// preemptedLocked notes in the stories of those who have to go for whom that is.
func (t *Timeline) preemptedLocked(m *mark.Mark, p *mark.Preemption) {
	if p == nil {
		return
	}
	for _, v := range p.Victims {
		if r := t.pods.of(t.names[v.Namespace+"/"+v.Name]); r != nil && r.began.Before(m.At) {
			r.leavesFor = m.Subject.Namespace + "/" + m.Subject.Name
		}
	}
}

// snapshot returns the marks of a pod and of its owners, nearest first.
func (t *Timeline) snapshot(namespace, name string) (pod *record, owners []*record, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.pods.of(t.names[namespace+"/"+name])
	if r == nil {
		return nil, nil, ErrUnknown
	}
	if mirror := t.pods.of(r.mirror); mirror != nil && mirror.subject.Name == r.subject.Name && mirror.subject.Namespace == r.subject.Namespace {
		r = mirror
	}
	pod = r.clone()
	pod.decided = t.decided.of(r.uid)
	if static := t.pods.of(r.static); static != nil && static.subject.Name == r.subject.Name && static.subject.Namespace == r.subject.Namespace {
		pod.shows = static.clone()
	}
	for _, m := range pod.marks() {
		if d, ok := m.Detail.(*mark.Reachable); ok {
			if s := t.resolved.of(namespace + "/" + d.Service); s != nil && !s.began.IsZero() {
				pod.names = append(pod.names, s.first[0])
			}
		}
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

// Pods counts the remembered pods.
func (t *Timeline) Pods() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pods.records)
}

// topic wakes followers of one pod.
type topic struct {
	followers int
	changed   chan struct{} // closed and replaced at each mark
}

func (p *topic) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// follow registers interest in a pod; next returns a channel that is closed at the next mark, done ends it.
func (t *Timeline) follow(namespace, name string) (next func() <-chan struct{}, done func()) {
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

// shelf keeps the records touched last.
type shelf struct {
	limit   int
	records map[string]*list.Element // by UID, of *record
	order   *list.List               // the one touched last in front
}

func newShelf(limit int) shelf {
	return shelf{limit: limit, records: map[string]*list.Element{}, order: list.New()}
}

func (s *shelf) of(uid string) *record {
	e, ok := s.records[uid]
	if !ok {
		return nil
	}
	r, _ := e.Value.(*record)
	return r
}

// get returns the record of a UID, new if need be, and drops the one untouched for longest when there are too many.
func (s *shelf) get(uid string, about mark.Subject, dropped func(*record)) *record {
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

// record is what is remembered of one object: the first marks and a ring of the last.
type record struct {
	uid     string
	subject mark.Subject
	owner   string // UID
	node    string // that it was bound to, as others than that node said
	began   time.Time
	touched time.Time   // when a mark came last
	packed  packed      // the oldest of the first marks
	static  string      // UID of the static pod that this one is the API's image of
	mirror  string      // UID of the API's image of this one
	shows   *record     // the static pod, of a snapshot
	names   []mark.Mark // of Services that lead to the pod, of a snapshot
	decided *decided    // the last attempt, of a snapshot
	// leavesFor is the pod, namespace/name, that the scheduler makes room for by deleting this one; empty: there is none.
	leavesFor string
	deliveries
	first   []mark.Mark
	last    []mark.Mark
	next    int // in last
	dropped int
}

func (r *record) add(m mark.Mark) {
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
	c.first, c.last, c.list = slices.Concat(r.packed.unpack(), r.first), slices.Clone(r.last), slices.Clone(r.list)
	c.packed = packed{}
	return &c
}

// marks returns all marks of a clone by the time they began.
func (r *record) marks() []mark.Mark {
	all := slices.Concat(r.first, r.last, r.deliveries.marks(r.subject))
	if r.shows != nil {
		all = append(all, r.shows.marks()...)
	}
	for _, m := range r.names {
		if !m.At.Before(r.began) { // or else the name led elsewhere before
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b mark.Mark) int { return a.At.Compare(b.At) })
	return all
}

// ownerUID is for a clone, too.
func (r *record) ownerUID() string {
	for _, m := range slices.Concat(r.first, r.last) {
		if q, ok := m.Detail.(*mark.Request); ok && q.OwnerUID != "" {
			return q.OwnerUID
		}
	}
	return ""
}
