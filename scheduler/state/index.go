// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// maxCounters bounds how many questions about pods are kept answered; the one unused for longest goes.
const maxCounters = 512

// Query asks for pods that match every one of Terms (their topology keys aside). Live leaves out pods that are being deleted.
type Query struct {
	Terms []*Term
	Live  bool
}

func (q Query) sig() string {
	if len(q.Terms) == 1 && !q.Live {
		return q.Terms[0].Sig
	}
	var b strings.Builder
	if q.Live {
		b.WriteString("live&")
	}
	for _, t := range q.Terms {
		b.WriteString(t.Sig)
		b.WriteByte('&')
	}
	return b.String()
}

// Matches reports whether a pod counts.
func (q Query) Matches(pod *corev1.Pod, ns labels.Set) bool {
	if q.Live && pod.DeletionTimestamp != nil {
		return false
	}
	for _, t := range q.Terms {
		if !t.Matches(pod, ns) {
			return false
		}
	}
	return true
}

// Kind is what a pod's own term asks of other pods.
type Kind int

// The kinds of terms that existing pods hold against, or for, a newcomer.
const (
	HoldsAffinity Kind = iota // required
	HoldsAntiAffinity
	HoldsPreferred     // weights count
	HoldsPreferredAnti // weights count
	kinds
)

// Group is all terms of one kind that mean the same, with how many pods hold it (or the sum of their weights) by node.
type Group struct {
	*Counter
	Term *Term
}

type query struct {
	*Counter
	q    Query
	used int64
}

type located struct {
	info *PodInfo
	node string
}

// index answers "how many pods that match this are where" without looking at every pod.
type index struct {
	snap    *Snapshot
	cells   int                              // of all sums that are kept
	pods    map[string]map[types.UID]located // by namespace
	clock   int64
	queries map[string]*query
	holders [kinds]map[string]*Group
	users   map[string][]located // by what they use
}

func newIndex(s *Snapshot) *index {
	x := &index{snap: s, pods: map[string]map[types.UID]located{}, queries: map[string]*query{}, users: map[string][]located{}}
	for k := range x.holders {
		x.holders[k] = map[string]*Group{}
	}
	return x
}

// topologyChanged drops sums by label: they are made again when asked for.
func (x *index) topologyChanged() {
	for _, q := range x.queries {
		q.drop()
	}
	for _, groups := range x.holders {
		for _, g := range groups {
			g.drop()
		}
	}
}

func (x *index) apply(ch change) {
	pod := ch.info.Pod
	ns := x.pods[pod.Namespace]
	if ns == nil {
		ns = map[types.UID]located{}
		x.pods[pod.Namespace] = ns
	}
	if ch.sign < 0 {
		delete(ns, pod.UID)
		if len(ns) == 0 {
			delete(x.pods, pod.Namespace)
		}
	} else {
		ns[pod.UID] = located{ch.info, ch.node}
	}
	x.use(ch)
	if ch.sign == 0 {
		return
	}
	sign := int64(ch.sign)
	for _, q := range x.queries {
		if q.q.Matches(pod, x.snap.Namespaces[pod.Namespace]) {
			q.add(ch.node, sign)
		}
	}
	if ch.info.hasTerms() {
		x.hold(ch.info, ch.node, sign)
	}
}

func (x *index) hold(p *PodInfo, node string, sign int64) {
	for _, t := range p.Affinity {
		x.holdTerm(HoldsAffinity, t, node, sign)
	}
	for _, t := range p.AntiAffinity {
		x.holdTerm(HoldsAntiAffinity, t, node, sign)
	}
	for _, t := range p.PreferredAffinity {
		x.holdTerm(HoldsPreferred, t.Term, node, sign*t.Weight)
	}
	for _, t := range p.PreferredAntiAffinity {
		x.holdTerm(HoldsPreferredAnti, t.Term, node, sign*t.Weight)
	}
}

func (x *index) holdTerm(k Kind, t *Term, node string, n int64) {
	key := t.TopologyKey + "|" + t.Sig
	g := x.holders[k][key]
	if g == nil {
		g = &Group{newCounter(x), t}
		x.holders[k][key] = g
	}
	g.add(node, n)
	if len(g.nodes) == 0 {
		g.drop()
		delete(x.holders[k], key)
	}
}

// Count returns the counter of the pods that match q. It is valid until the next Refresh.
func (s *Snapshot) Count(q Query) *Counter {
	x := s.index
	x.clock++
	sig := q.sig()
	if c, ok := x.queries[sig]; ok {
		c.used = x.clock
		return c.Counter
	}
	if len(x.queries) >= maxCounters {
		x.dropOldest()
	}
	c := &query{newCounter(x), q, x.clock}
	for name, pods := range x.pods {
		if !slices.ContainsFunc(q.Terms, func(t *Term) bool { return t.InNamespace(name, s.Namespaces[name]) }) {
			continue
		}
		for _, p := range pods {
			if q.Matches(p.info.Pod, s.Namespaces[name]) {
				c.add(p.node, 1)
			}
		}
	}
	x.queries[sig] = c
	return c.Counter
}

func (x *index) dropOldest() {
	oldest := ""
	for sig, q := range x.queries {
		if oldest == "" || q.used < x.queries[oldest].used {
			oldest = sig
		}
	}
	x.queries[oldest].drop()
	delete(x.queries, oldest)
}

// Holders returns the groups of a kind whose term matches pod: what pods already there ask of it.
func (s *Snapshot) Holders(k Kind, pod *corev1.Pod) []*Group {
	var out []*Group
	for _, g := range s.index.holders[k] {
		if g.Term.Matches(pod, s.Namespaces[pod.Namespace]) {
			out = append(out, g)
		}
	}
	return out
}

// AnyHolders reports whether any pod holds a term of a kind.
func (s *Snapshot) AnyHolders(k Kind) bool { return len(s.index.holders[k]) > 0 }
