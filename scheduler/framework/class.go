// SPDX-License-Identifier: Apache-2.0

package framework

import "slices"

// class is what local filters and scorers say of all nodes to pods that ask for the same (state.PodInfo.AppendClass). Each node is judged
// when it has changed since the last such pod, so that identical pods share one evaluation. Slices are by place in Snapshot.Nodes.
type class struct {
	used, epoch int64
	filters     int // how many local filters there are
	// Versions (state.Snapshot) of the nodes that the filters, and the scorers, have judged.
	judged, ranked []int64
	status         []*Status
	// All nodes are judged as of the snapshot's version seen, and refused is how many the filters refuse; -1: not all are.
	seen    int64
	refused int
	// The scorers' raw scores, by scorer, nil where one is not local or has nothing to say; and of each node the weighted sum of those
	// that need no Normalize.
	raw  [][]int64
	base []int64
	// All nodes are ranked as of the snapshot's version rankedAt; -1: not all are. top are then the places of the nodes with the largest base,
	// in their order; none: that has to be looked for.
	rankedAt int64
	top      []int32
	// beside is what the filters say of nodes beside the pods nominated to them, by the pod's priority.
	beside map[int32]*beside
}

// beside is a verdict for each node of a version, where the pod fits but for the pods nominated to it.
type beside struct {
	judged []int64
	status []*Status
}

// maxBeside bounds for how many priorities of a class verdicts are kept.
const maxBeside = 4

// maxClasses bounds how many classes are kept; the one unused for longest goes.
const maxClasses = 32

// classOf returns the class of the attempt's pod. local is how many of its filters, the first ones, are local.
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

// zeros returns n zeros, in the place of s if they have room there.
func zeros[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// dropClass takes out the class that was unused for longest, for another one to be made of it.
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

// localFilters counts the filters, from the first one, that are local.
func localFilters(filters []NamedFilter) int {
	for i := range filters {
		if _, ok := filters[i].NodeFilter.(Local); !ok {
			return i
		}
	}
	return len(filters)
}

// judge brings the verdict on the node at a place up to date.
func (c *class) judge(a *Attempt, place int) *Status {
	if v := a.Snapshot.Versions[place]; c.judged[place] != v {
		c.judged[place], c.status[place] = v, Check(a.Filters[:c.filters], a.Snapshot.Nodes[place])
	}
	return c.status[place]
}

// judgeAll brings the verdicts on all nodes up to date.
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

// judgeComing refuses nodes of out where the pod does not fit beside the pods nominated to them. What local filters say is kept.
func (c *class) judgeComing(a *Attempt, out []*Status) {
	s := a.Snapshot
	var b *beside
	if c.filters == len(a.Filters) && a.but == nil {
		b = c.besideOf(a.Pod.Priority, len(out))
	}
	own := s.NominatedPlace(a.Pod.Pod.UID) // there others count than for the class
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

// rank brings the scores of the nodes at places up to date. ranking are the scorers' of this attempt.
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

// rankOne brings the scores of the node at a place up to date.
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

// moved keeps top true where the base of a place was another one.
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

// best returns the places of the nodes with the largest base. All are ranked.
func (c *class) best() []int32 {
	if len(c.top) == 0 {
		c.top = largest(c.top, c.base)
	}
	return c.top
}

// largest appends to out, which is empty, where in values the largest are.
func largest(out []int32, values []int64) []int32 {
	most := slices.Max(values)
	for i, v := range values {
		if v == most {
			out = append(out, int32(i)) //nolint:gosec // there are fewer nodes
		}
	}
	return out
}
