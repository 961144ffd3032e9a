// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// maxCounters bounds the number of cached queries. The least recently used one is dropped.
const maxCounters = 512

// Query selects the pods that match all Terms, whatever their topology keys. Live excludes pods that are being deleted.
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

// TermKind is the field of a pod's spec that a term comes from.
type TermKind int

// The kinds of the terms of existing pods.
const (
	ExistingAffinity TermKind = iota // required
	ExistingAntiAffinity
	ExistingPreferred     // weights count
	ExistingPreferredAnti // weights count
	termKinds
)

// TermGroup stands for all equal terms of one kind. Its counter has the number of pods with the term by node, or the
// sum of its weights.
type TermGroup struct {
	*Counter
	Term *Term
}

type query struct {
	*Counter
	q    Query
	used int64
}

type placedOn struct {
	info *PodInfo
	node string
}

// index counts pods by query and by term, per node. It is updated with each change of a pod, so that a lookup does not
// visit all pods.
type index struct {
	snap       *Snapshot
	keptSums   int                               // number of sums in all counters
	pods       map[string]map[types.UID]placedOn // by namespace
	clock      int64
	queries    map[string]*query
	termGroups [termKinds]map[string]*TermGroup
	users      map[string][]placedOn // by PodInfo.Uses
}

func newIndex(s *Snapshot) *index {
	x := &index{
		snap:    s,
		pods:    map[string]map[types.UID]placedOn{},
		queries: map[string]*query{},
		users:   map[string][]placedOn{},
	}
	for k := range x.termGroups {
		x.termGroups[k] = map[string]*TermGroup{}
	}
	return x
}

// topologyChanged drops all sums by label, since node labels changed.
func (x *index) topologyChanged() {
	for _, q := range x.queries {
		q.dropSums()
	}
	for _, groups := range x.termGroups {
		for _, g := range groups {
			g.dropSums()
		}
	}
}

func (x *index) apply(ch change) {
	pod := ch.info.Pod
	ns := x.pods[pod.Namespace]
	if ns == nil {
		ns = map[types.UID]placedOn{}
		x.pods[pod.Namespace] = ns
	}
	if ch.sign < 0 {
		delete(ns, pod.UID)
		if len(ns) == 0 {
			delete(x.pods, pod.Namespace)
		}
	} else {
		ns[pod.UID] = placedOn{ch.info, ch.node}
	}
	x.updateUsers(ch)
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
		x.addTerms(ch.info, ch.node, sign)
	}
}

func (x *index) addTerms(p *PodInfo, node string, sign int64) {
	for _, t := range p.Affinity {
		x.addTerm(ExistingAffinity, t, node, sign)
	}
	for _, t := range p.AntiAffinity {
		x.addTerm(ExistingAntiAffinity, t, node, sign)
	}
	for _, t := range p.PreferredAffinity {
		x.addTerm(ExistingPreferred, t.Term, node, sign*t.Weight)
	}
	for _, t := range p.PreferredAntiAffinity {
		x.addTerm(ExistingPreferredAnti, t.Term, node, sign*t.Weight)
	}
}

func (x *index) addTerm(k TermKind, t *Term, node string, n int64) {
	key := t.TopologyKey + "|" + t.Sig
	g := x.termGroups[k][key]
	if g == nil {
		g = &TermGroup{newCounter(x), t}
		x.termGroups[k][key] = g
	}
	g.add(node, n)
	if len(g.nodes) == 0 {
		g.dropSums()
		delete(x.termGroups[k], key)
	}
}

// Count returns the number of pods that match q, per node. It is valid until the next Refresh.
func (s *Snapshot) Count(q Query) *Counter {
	index := s.index
	index.clock++
	sig := q.sig()
	if c, ok := index.queries[sig]; ok {
		c.used = index.clock
		return c.Counter
	}
	if len(index.queries) >= maxCounters {
		index.dropOldest()
	}
	c := &query{newCounter(index), q, index.clock}
	for name, pods := range index.pods {
		if !slices.ContainsFunc(q.Terms, func(t *Term) bool { return t.InNamespace(name, s.Namespaces[name]) }) {
			continue
		}
		for _, p := range pods {
			if q.Matches(p.info.Pod, s.Namespaces[name]) {
				c.add(p.node, 1)
			}
		}
	}
	index.queries[sig] = c
	return c.Counter
}

func (x *index) dropOldest() {
	oldest := ""
	for sig, q := range x.queries {
		if oldest == "" || q.used < x.queries[oldest].used {
			oldest = sig
		}
	}
	x.queries[oldest].dropSums()
	delete(x.queries, oldest)
}

// MatchingTermGroups returns the terms of existing pods, of one kind, that match pod.
func (s *Snapshot) MatchingTermGroups(k TermKind, pod *corev1.Pod) []*TermGroup {
	var out []*TermGroup
	for _, g := range s.index.termGroups[k] {
		if g.Term.Matches(pod, s.Namespaces[pod.Namespace]) {
			out = append(out, g)
		}
	}
	return out
}

// HasTermGroups reports whether any existing pod has a term of a kind.
func (s *Snapshot) HasTermGroups(k TermKind) bool { return len(s.index.termGroups[k]) > 0 }
