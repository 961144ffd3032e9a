// SPDX-License-Identifier: Apache-2.0

package framework

// class is what local filters and scorers say of all nodes to pods that ask for the same (state.PodInfo.AppendClass). Each node is judged
// when it has changed since the last such pod, so that identical pods share one evaluation. Slices are by place in Snapshot.Nodes.
type class struct {
	used, epoch int64
	filters     int // how many local filters there are
	// Versions (state.Snapshot) of the nodes that the filters, and the scorers, have judged.
	judged, ranked []int64
	status         []*Status
	// The scorers' raw scores, by scorer, nil where one is not local or has nothing to say; and of each node the weighted sum of those
	// that need no Normalize.
	raw  [][]int64
	base []int64
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
		coming := s.Coming(place)
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
		c.raw, c.base, c.ranked = make([][]int64, len(ranking)), zeros(c.base, n), zeros(c.ranked, n)
		for i := range ranking {
			if _, local := ranking[i].(Local); local {
				c.raw[i] = make([]int64, n)
			}
		}
	}
	for _, place := range places {
		v := a.Snapshot.Versions[place]
		if c.ranked[place] == v {
			continue
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
}
