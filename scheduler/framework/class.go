// SPDX-License-Identifier: Apache-2.0

package framework

import "slices"

// class caches the results of Local filters and scorers for all nodes, for pods with the same requirements (state.PodInfo.AppendClass). A
// node is evaluated again only if it has changed since the last pod of the class. So identical pods share one evaluation. The slices are
// indexed like Snapshot.Nodes; such an index is called a place.
type class struct {
	used, epoch int64
	filters     int // number of Local filters
	// judged are the node versions (state.Snapshot) for which status is valid, and ranked those for which the scores are valid.
	judged, ranked []int64
	status         []*Status
	// seen is the snapshot version at which all nodes were filtered; -1: not all are. refused is then the number of refused ones.
	seen    int64
	refused int
	// raw are the raw scores by scorer, nil for a scorer that is not Local or that PreScore skipped. base is each node's weighted sum of
	// the scores that need no Normalize.
	raw  [][]int64
	base []int64
	// rankedAt is the snapshot version at which all nodes were scored; -1: not all are. top are then the places of the nodes with the
	// largest base, in ascending order; empty: not computed yet.
	rankedAt int64
	top      []int32
	// beside caches, by the pod's priority, the results of the filters with the nominated pods added to their nodes.
	beside map[int32]*beside
}

// beside is the cached result for each node on which the pod fits if its nominated pods are ignored: does it also fit beside them?
// judged are the node versions for which status is valid.
type beside struct {
	judged []int64
	status []*Status
}

// maxBeside is the maximum number of priorities in class.beside.
const maxBeside = 4

// maxClasses is the maximum number of cached classes; the least recently used one is removed.
const maxClasses = 32

// classOf returns the class of the attempt's pod. Its first local filters are Local.
func (e *Engine) classOf(a *Attempt, local int) *class {
	e.key = a.Pod.AppendClass(e.key[:0])
	e.clock++
	c := e.classes[string(e.key)]
	if c == nil {
		if len(e.classes) < maxClasses {
			c = &class{}
		} else {
			c = e.dropClass()
			c.epoch = -1
		}
		e.classes[string(e.key)] = c
	}
	c.used = e.clock
	if n := len(a.Snapshot.Nodes); c.epoch != a.Snapshot.Epoch || len(c.judged) != n || c.filters != local {
		c.epoch, c.filters = a.Snapshot.Epoch, local
		c.judged, c.ranked, c.status = zeros(c.judged, n), zeros(c.ranked, n), zeros(c.status, n)
		c.seen, c.rankedAt = -1, -1
		clear(c.beside)
	}
	return c
}

// zeros returns a slice of n zeros. It reuses the memory of s if that is large enough.
func zeros[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// dropClass removes the least recently used class and returns it, so that its memory is reused.
func (e *Engine) dropClass() *class {
	oldest := ""
	for key, c := range e.classes {
		if oldest == "" || c.used < e.classes[oldest].used {
			oldest = key
		}
	}
	c := e.classes[oldest]
	delete(e.classes, oldest)
	return c
}

// localFilters returns the number of Local filters before the first one that is not Local.
func localFilters(filters []NamedFilter) int {
	for i := range filters {
		if _, ok := filters[i].NodeFilter.(Local); !ok {
			return i
		}
	}
	return len(filters)
}

// judge returns the Local filters' status for the node at a place. It runs them only if the node has changed.
func (c *class) judge(a *Attempt, place int) *Status {
	if v := a.Snapshot.Versions[place]; c.judged[place] != v {
		c.judged[place], c.status[place] = v, Check(a.Filters[:c.filters], a.Snapshot.Nodes[place])
	}
	return c.status[place]
}

// judgeAll updates the statuses of all nodes.
func (c *class) judgeAll(a *Attempt) {
	changed, known := a.Snapshot.Changed(c.seen)
	if c.seen < 0 || !known {
		c.refused = 0
		for place := range c.judged {
			if c.judge(a, place) != nil {
				c.refused++
			}
		}
	}
	for _, place := range changed {
		if c.status[place] != nil {
			c.refused--
		}
		if c.judge(a, int(place)) != nil {
			c.refused++
		}
	}
	c.seen = a.Snapshot.Version()
}

// judgeComing sets the status in out of the nodes on which the pod does not fit together with their nominated pods. The results are cached
// if all filters are Local and no nominated pods are ignored.
func (c *class) judgeComing(a *Attempt, out []*Status) {
	s := a.Snapshot
	var b *beside
	if c.filters == len(a.Filters) && a.but == nil {
		b = c.besideOf(a.Pod.Priority, len(out))
	}
	own := s.NominatedPlace(a.Pod.Pod.UID) // on this node the pod's own nomination is ignored, so the class's result is not valid for it
	for place, n := range s.Nodes {
		if out[place] != nil {
			continue
		}
		coming := s.NominatedAt(place)
		switch {
		case len(coming) == 0:
		case b == nil || place == own:
			out[place] = a.checkComing(n, coming)
		default:
			if v := s.Versions[place]; b.judged[place] != v {
				b.judged[place], b.status[place] = v, a.checkComing(n, coming)
			}
			out[place] = b.status[place]
		}
	}
}

func (c *class) besideOf(priority int32, nodes int) *beside {
	b := c.beside[priority]
	if b == nil {
		if c.beside == nil || len(c.beside) >= maxBeside {
			c.beside = map[int32]*beside{}
		}
		b = &beside{judged: make([]int64, nodes), status: make([]*Status, nodes)}
		c.beside[priority] = b
	}
	return b
}

// rank updates the scores of the nodes at places. ranking are the NodeScorers of this attempt, by scorer.
func (c *class) rank(a *Attempt, scorers []Weighted, ranking []NodeScorer, places []int32) {
	n := len(a.Snapshot.Nodes)
	same := len(c.raw) == len(ranking) && len(c.base) == n
	for i := range ranking {
		_, local := ranking[i].(Local)
		same = same && local == (c.raw[i] != nil)
	}
	if !same {
		c.raw, c.base, c.ranked, c.rankedAt = make([][]int64, len(ranking)), zeros(c.base, n), zeros(c.ranked, n), -1
		for i := range ranking {
			if _, local := ranking[i].(Local); local {
				c.raw[i] = make([]int64, n)
			}
		}
	}
	everywhere := len(places) == n
	if changed, known := a.Snapshot.Changed(c.rankedAt); everywhere && c.rankedAt >= 0 && known {
		for _, place := range changed {
			before := c.base[place]
			c.rankOne(a, scorers, ranking, place)
			c.moved(place, before)
		}
	} else {
		c.top = c.top[:0]
		for _, place := range places {
			c.rankOne(a, scorers, ranking, place)
		}
	}
	if c.rankedAt = -1; everywhere {
		c.rankedAt = a.Snapshot.Version()
	}
}

// rankOne updates the scores of the node at a place.
func (c *class) rankOne(a *Attempt, scorers []Weighted, ranking []NodeScorer, place int32) {
	v := a.Snapshot.Versions[place]
	if c.ranked[place] == v {
		return
	}
	c.ranked[place], c.base[place] = v, 0
	for i, raw := range c.raw {
		if raw == nil {
			continue
		}
		raw[place] = ranking[i].Score(a.Snapshot.Nodes[place])
		if _, absolute := ranking[i].(Absolute); absolute {
			c.base[place] += raw[place] * scorers[i].Weight
		}
	}
}

// moved updates top after the base of a place has changed; before is the previous base.
func (c *class) moved(place int32, before int64) {
	if len(c.top) == 0 {
		return
	}
	at, found := slices.BinarySearch(c.top, place)
	most, now := before, c.base[place]
	if !found {
		most = c.base[c.top[0]]
	} else if len(c.top) > 1 {
		most = c.base[c.top[(at+1)%len(c.top)]]
	}
	switch {
	case now > most:
		c.top = append(c.top[:0], place)
	case now == most && !found:
		c.top = slices.Insert(c.top, at, place)
	case now < most && found:
		c.top = slices.Delete(c.top, at, at+1)
	}
}

// best returns the places of the nodes with the largest base. All nodes must be scored.
func (c *class) best() []int32 {
	if len(c.top) == 0 {
		c.top = largest(c.top, c.base)
	}
	return c.top
}

// largest appends to out, which must be empty, the indexes of the largest values.
func largest(out []int32, values []int64) []int32 {
	most := slices.Max(values)
	for i, v := range values {
		if v == most {
			out = append(out, int32(i)) //nolint:gosec // there are fewer nodes
		}
	}
	return out
}
