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
	Log   *slog.Logger
}

// Timeline remembers marks. Its methods may be called from any goroutine.
type Timeline struct {
	log   *slog.Logger
	rates rates

	mu     sync.Mutex
	pods   shelf
	owners shelf
	names  map[string]string // namespace/name of a pod -> UID of the latest with that name
	news   map[string]*topic // namespace/name -> who follows
}

// ErrUnknown is returned for a pod that no mark has told of.
var ErrUnknown = errors.New("nothing is remembered about it: it does not exist, or came to be before the server started")

// New returns an empty timeline; it starts nothing.
func New(cfg Config) *Timeline {
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Timeline{
		log: cfg.Log, pods: newShelf(cfg.Limit), owners: newShelf(keepOwners), names: map[string]string{}, news: map[string]*topic{},
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
	if _, ok := ownerKinds[m.Subject.Resource]; !ok || m.Subject.UID == "" || routine(m) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.owners.get(m.Subject.UID, m.Subject, func(*record) {})
	r.add(m)
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
	if known := t.pods.of(t.names[name]); known == nil || known == r || !known.first[0].At.After(m.At) {
		t.names[name] = uid
	}
	r.add(m)
	switch d := m.Detail.(type) {
	case *mark.Request:
		if d.OwnerUID != "" {
			r.owner = d.OwnerUID
		}
	case *mark.Bind:
		if m.Err == "" {
			r.node = d.Node
		}
	}
	if m.ReportedBy != "" && r.node == "" {
		r.node = m.ReportedBy // the API said that the pod is bound to it, or the mark would not be here
	}
	if topic := t.news[name]; topic != nil {
		topic.tell()
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
	pod = r.clone()
	const depth = 3
	for uid := r.owner; uid != "" && len(owners) < depth; {
		o := t.owners.of(uid)
		if o == nil {
			break
		}
		owners = append(owners, o.clone())
		uid = o.ownerUID()
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

func (p *topic) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// follow registers interest in a pod; next returns a channel that is closed at the next mark, done ends it.
func (t *Timeline) follow(namespace, name string) (next func() <-chan struct{}, done func()) {
	key := namespace + "/" + name
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.news[key]
	if p == nil {
		p = &topic{changed: make(chan struct{})}
		t.news[key] = p
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
			delete(t.news, key)
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
	first   []mark.Mark
	last    []mark.Mark
	next    int // in last
	dropped int
}

func (r *record) add(m mark.Mark) {
	switch {
	case len(r.first) < keepFirst:
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
	c.first, c.last = slices.Clone(r.first), slices.Clone(r.last)
	return &c
}

// marks returns all marks by the time they began.
func (r *record) marks() []mark.Mark {
	all := slices.Concat(r.first, r.last)
	slices.SortStableFunc(all, func(a, b mark.Mark) int { return a.At.Compare(b.At) })
	return all
}

func (r *record) ownerUID() string {
	for _, m := range slices.Concat(r.first, r.last) {
		if q, ok := m.Detail.(*mark.Request); ok && q.OwnerUID != "" {
			return q.OwnerUID
		}
	}
	return ""
}
