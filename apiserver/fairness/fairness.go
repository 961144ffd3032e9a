// SPDX-License-Identifier: Apache-2.0

// Package fairness implements API priority and fairness (Kubernetes documentation, "API Priority and Fairness"): it
// decides which request is served next when there are too many. A FlowSchema assigns a request to a priority level. A
// level has seats, and queues for requests that find no free seat. Inside a level, fair queuing keeps one client's many
// requests from delaying those of other clients.
//
// The API server's pipeline calls Enter for every request that is not long-running. The server passes FlowSchemas and
// PriorityLevelConfigurations to Set and Remove. The package never parses HTTP, never calls the API, and does not
// compute a request's cost: the caller does.
//
// Invariants:
//  1. A level always gets its guaranteed seats; it may use more while others leave theirs idle.
//  2. An exempt level never waits. Without any configuration everything is exempt.
//  3. The release function that Enter returns frees the request's seats, exactly once.
package fairness

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Request holds the attributes that FlowSchemas match.
type Request struct {
	User        string
	Groups      []string
	Verb        string
	IsResource  bool
	Group       string
	Resource    string
	Subresource string
	Namespace   string
	Path        string
	// Cost is the number of seats; at least 1.
	Cost int
}

// Classification is the FlowSchema and priority level of a request.
type Classification struct {
	Schema, SchemaUID string
	Level, LevelUID   string
}

// Reasons for rejection; the client gets 429.
var (
	ErrQueueFull = errors.New("queue-full")
	ErrTimeOut   = errors.New("time-out")
	// ErrNoSeats is the reason at a level that does not queue.
	ErrNoSeats = errors.New("concurrency-limit")
)

// Controller assigns seats.
type Controller struct {
	totalSeats int
	maxWait    time.Duration
	seed       maphash.Seed

	mu          sync.Mutex
	schemas     []*schema // by precedence
	levels      map[string]*level
	objects     map[string]runtime.Object // from Set, by kind and name
	schemaStats map[schemaStatKey]*SchemaStat
}

// New returns a controller with this total number of seats. maxWait is the maximum time that a request waits in a
// queue.
func New(seats int, maxWait time.Duration) *Controller {
	return &Controller{
		totalSeats:  seats,
		maxWait:     maxWait,
		seed:        maphash.MakeSeed(),
		levels:      map[string]*level{},
		objects:     map[string]runtime.Object{},
		schemaStats: map[schemaStatKey]*SchemaStat{},
	}
}

// Set adds or updates a FlowSchema or PriorityLevelConfiguration; other kinds are ignored.
func (c *Controller) Set(obj runtime.Object) { c.change(obj, true) }

// Remove removes a deleted FlowSchema or PriorityLevelConfiguration.
func (c *Controller) Remove(obj runtime.Object) { c.change(obj, false) }

func (c *Controller) change(obj runtime.Object, exists bool) {
	var key string
	switch o := obj.(type) {
	case *flowcontrolv1.FlowSchema:
		key = "schema/" + o.Name
	case *flowcontrolv1.PriorityLevelConfiguration:
		key = "level/" + o.Name
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if exists {
		c.objects[key] = obj
	} else {
		delete(c.objects, key)
	}
	c.configureLocked()
}

// configureLocked rebuilds schemas and levels. Running requests keep their level's counters.
func (c *Controller) configureLocked() {
	shares := 0
	for _, obj := range c.objects {
		if p, ok := obj.(*flowcontrolv1.PriorityLevelConfiguration); ok {
			shares += sharesOf(p)
		}
	}
	configured := map[string]bool{}
	var schemas []*schema
	for _, obj := range c.objects {
		switch o := obj.(type) {
		case *flowcontrolv1.PriorityLevelConfiguration:
			configured[o.Name] = true
			l := c.levels[o.Name]
			if l == nil {
				l = &level{name: o.Name}
				c.levels[o.Name] = l
			}
			l.configure(o, c.totalSeats, shares)
		case *flowcontrolv1.FlowSchema:
			schemas = append(schemas, &schema{o})
		}
	}
	for name, l := range c.levels {
		if !configured[name] && l.waiting == 0 && l.executing == 0 { // else it is removed at a later change
			delete(c.levels, name)
		}
	}
	slices.SortFunc(schemas, func(a, b *schema) int {
		return cmp.Or(cmp.Compare(a.spec.Spec.MatchingPrecedence, b.spec.Spec.MatchingPrecedence),
			strings.Compare(a.spec.Name, b.spec.Name))
	})
	c.schemas = schemas
	c.dispatchLocked()
}

// classifyLocked returns the first schema that matches a request, and its level; nil: there is none, and the request is
// exempt.
func (c *Controller) classifyLocked(r *Request) (*schema, *level) {
	for _, s := range c.schemas {
		if !s.matches(r) {
			continue
		}
		if l := c.levels[s.spec.Spec.PriorityLevelConfiguration.Name]; l != nil {
			return s, l
		}
	}
	return nil, nil
}

// Enter waits for the request's seats. The caller must call release when the request is done; release is nil with an
// error.
func (c *Controller) Enter(ctx context.Context, request *Request) (release func(), class Classification, err error) {
	c.mu.Lock()
	schema, level := c.classifyLocked(request)
	if schema == nil {
		c.mu.Unlock()
		return func() {}, class, nil
	}
	class = Classification{
		Schema:    schema.spec.Name,
		SchemaUID: string(schema.spec.UID),
		Level:     level.name,
		LevelUID:  level.uid,
	}
	cost := min(max(request.Cost, 1), max(level.nominal, 1))
	f := c.schemaStatLocked(class)
	if level.exempt || level.waiting == 0 && c.fitsLocked(level, cost) {
		c.occupyLocked(level, f, cost)
		c.mu.Unlock()
		return c.releaseFunc(level, f, cost), class, nil
	}
	w, err := level.enqueue(c.flowHash(schema, request), cost)
	if err == nil {
		w.stat = f
		f.Waiting++
	}
	c.mu.Unlock()
	if err != nil {
		return nil, class, err
	}
	return c.wait(ctx, level, w, class)
}

func (c *Controller) wait(
	ctx context.Context, l *level, w *waiter, class Classification,
) (func(), Classification, error) {
	limit := time.NewTimer(c.maxWait)
	defer limit.Stop()
	var err error
	select {
	case <-w.seat:
		return c.releaseFunc(l, w.stat, w.cost), class, nil
	case <-limit.C:
		err = ErrTimeOut
	case <-ctx.Done():
		err = ErrTimeOut
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-w.seat: // a seat was assigned at the same moment
		return c.releaseFunc(l, w.stat, w.cost), class, nil
	default:
	}
	l.remove(w)
	w.stat.Waiting--
	return nil, class, err
}

// fitsLocked reports whether l may use cost more seats: its own, or idle seats that it borrows from other levels.
func (c *Controller) fitsLocked(l *level, cost int) bool {
	if l.executing+cost <= l.nominal {
		return true
	}
	if l.executing+cost > l.upperLimit {
		return false
	}
	reserved := 0
	for _, o := range c.levels {
		if o != l {
			reserved += max(o.executing, o.lowerLimit)
		}
	}
	return l.executing+cost+reserved <= c.totalSeats
}

func (c *Controller) occupyLocked(l *level, f *SchemaStat, cost int) {
	l.executing += cost
	f.Executing++
	f.Seats += cost
	f.Dispatched++
}

func (c *Controller) releaseFunc(l *level, f *SchemaStat, cost int) func() {
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.executing -= cost
		f.Executing--
		f.Seats -= cost
		c.dispatchLocked()
	})
}

// dispatchLocked assigns free seats to waiting requests, level by level.
func (c *Controller) dispatchLocked() {
	for _, l := range c.levels {
		for {
			w := l.next()
			if w == nil || !c.fitsLocked(l, w.cost) {
				break
			}
			l.dequeue(w)
			w.stat.Waiting--
			c.occupyLocked(l, w.stat, w.cost)
			close(w.seat)
		}
	}
}

// flowHash identifies the flow of a request.
func (c *Controller) flowHash(s *schema, r *Request) uint64 {
	id := s.spec.Name
	if m := s.spec.Spec.DistinguisherMethod; m != nil {
		switch m.Type {
		case flowcontrolv1.FlowDistinguisherMethodByUserType:
			id += "\x00" + r.User
		case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
			id += "\x00" + r.Namespace
		}
	}
	return maphash.String(c.seed, id)
}

func sharesOf(p *flowcontrolv1.PriorityLevelConfiguration) int {
	switch {
	case p.Spec.Limited != nil && p.Spec.Limited.NominalConcurrencyShares != nil:
		return int(*p.Spec.Limited.NominalConcurrencyShares)
	case p.Spec.Limited != nil:
		return defaultShares
	case p.Spec.Exempt != nil && p.Spec.Exempt.NominalConcurrencyShares != nil:
		return int(*p.Spec.Exempt.NominalConcurrencyShares)
	}
	return 0
}

const defaultShares = 30

// percentOf returns n percent of whole, or fallback if n is nil.
func percentOf(n *int32, whole, fallback int) int {
	if n == nil {
		return fallback
	}
	return int(math.Round(float64(whole) * float64(*n) / 100))
}
