// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"keelson/scheduler/framework"
)

// class caches the results of NodeLocal filters and scorers for all nodes, for pods with the same requirements
// (state.PodInfo.AppendClass). A node is evaluated again only if it has changed since the last pod of the class. So
// identical pods share one evaluation. The slices are indexed like Snapshot.Nodes; such an index is called a place.
type class struct {
	used, epoch      int64
	nodeLocalFilters int // number of NodeLocal filters
	// statusVersions are the node versions (state.Snapshot) for which status is valid, scoreVersions those for which
	// the scores are valid.
	statusVersions, scoreVersions []int64
	status                        []*framework.Status
	// filteredAt is the snapshot version at which all nodes were filtered; -1: not all are. refused is then the number
	// of refused ones.
	filteredAt int64
	refused    int
	// refusals are those of the last attempt, which refused all nodes; nil: it did not.
	refusals *framework.Refusals
	// raw are the raw scores by scorer, nil for a scorer that is not NodeLocal or that PreScore skipped. base is each
	// node's weighted sum of the scores that need no Normalize.
	raw  [][]int64
	base []int64
	// scoredAt is the snapshot version at which all nodes were scored; -1: not all are. top are then the places of the
	// nodes with the largest base, in ascending order; empty: not computed yet.
	scoredAt int64
	top      []int32
	// withNominated caches, by the pod's priority, the results of the filters with the nominated pods added to their
	// nodes.
	withNominated map[int32]*nominatedResults
}

// nominatedResults are the cached results for the nodes on which the pod fits without their nominated pods: whether it
// also fits with them. versions are the node versions for which status is valid.
type nominatedResults struct {
	versions []int64
	status   []*framework.Status
}

// maxNominatedPriorities is the maximum number of priorities in class.withNominated.
const maxNominatedPriorities = 4

// maxClasses is the maximum number of cached classes; the least recently used one is removed.
const maxClasses = 32

// classOf returns the class of the attempt's pod. Its first nodeLocal filters are NodeLocal.
func (e *Engine) classOf(attempt *framework.Attempt, nodeLocal int) *class {
	e.key = attempt.Pod.AppendClass(e.key[:0])
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
	if n := len(attempt.Snapshot.Nodes); c.epoch != attempt.Snapshot.Epoch || len(c.statusVersions) != n ||
		c.nodeLocalFilters != nodeLocal {
		c.epoch = attempt.Snapshot.Epoch
		c.nodeLocalFilters = nodeLocal
		c.statusVersions = zeros(c.statusVersions, n)
		c.scoreVersions = zeros(c.scoreVersions, n)
		c.status = zeros(c.status, n)
		c.filteredAt = -1
		c.scoredAt = -1
		c.refusals = nil
		clear(c.withNominated)
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

// countNodeLocal returns the number of NodeLocal filters before the first one that is not NodeLocal.
func countNodeLocal(filters []framework.NamedFilter) int {
	for i := range filters {
		if !filters[i].NodeLocal {
			return i
		}
	}
	return len(filters)
}

// updateStatus returns the NodeLocal filters' status for the node at a place. It runs them only if the node has
// changed.
func (c *class) updateStatus(a *framework.Attempt, place int) *framework.Status {
	if v := a.Snapshot.Versions[place]; c.statusVersions[place] != v {
		c.statusVersions[place] = v
		c.status[place] = framework.Check(a.Filters[:c.nodeLocalFilters], a.Snapshot.Nodes[place])
	}
	return c.status[place]
}

// updateStatuses updates the statuses of all nodes.
func (c *class) updateStatuses(attempt *framework.Attempt) {
	changed, known := attempt.Snapshot.Changed(c.filteredAt)
	if c.filteredAt < 0 || !known {
		c.refused = 0
		c.refusals = nil
		for place := range c.statusVersions {
			if c.updateStatus(attempt, place) != nil {
				c.refused++
			}
		}
	}
	for _, place := range changed {
		if c.status[place] != nil {
			c.refused--
		}
		st := c.updateStatus(attempt, int(place))
		if st != nil {
			c.refused++
		}
		if c.refusals != nil && !c.refusals.Update(place, attempt.Snapshot.Nodes[place], st) {
			c.refusals = nil
		}
	}
	c.filteredAt = attempt.Snapshot.Version()
}

// filterWithNominated sets the status in out of the nodes on which the pod does not fit together with their nominated
// pods. The results are cached if all filters are NodeLocal and no nominated pods are ignored.
func (c *class) filterWithNominated(attempt *framework.Attempt, out []*framework.Status) {
	snapshot := attempt.Snapshot
	var results *nominatedResults
	if c.nodeLocalFilters == len(attempt.Filters) && attempt.IgnoreNominated == nil {
		results = c.resultsWithNominated(attempt.Pod.Priority, len(out))
	}
	// on this node the pod's own nomination is ignored, so the class's result is not valid for it
	own := snapshot.NominatedPlace(attempt.Pod.Pod.UID)
	for place, info := range snapshot.Nodes {
		if out[place] != nil {
			continue
		}
		nominated := snapshot.NominatedAt(place)
		switch {
		case len(nominated) == 0:
		case results == nil || place == own:
			out[place] = checkWithNominated(attempt, info, nominated)
		default:
			if v := snapshot.Versions[place]; results.versions[place] != v {
				results.versions[place] = v
				results.status[place] = checkWithNominated(attempt, info, nominated)
			}
			out[place] = results.status[place]
		}
	}
}

func (c *class) resultsWithNominated(priority int32, nodes int) *nominatedResults {
	b := c.withNominated[priority]
	if b == nil {
		if c.withNominated == nil || len(c.withNominated) >= maxNominatedPriorities {
			c.withNominated = map[int32]*nominatedResults{}
		}
		b = &nominatedResults{versions: make([]int64, nodes), status: make([]*framework.Status, nodes)}
		c.withNominated[priority] = b
	}
	return b
}

// updateScores updates the scores of the nodes at places. nodeScorers are those of this attempt, by scorer.
func (c *class) updateScores(attempt *framework.Attempt, scorers []framework.Weighted, nodeScorers []framework.NodeScorer, places []int32) {
	n := len(attempt.Snapshot.Nodes)
	same := len(c.raw) == len(nodeScorers) && len(c.base) == n
	for i := range nodeScorers {
		same = same && nodeScorers[i].NodeLocal == (c.raw[i] != nil)
	}
	if !same {
		c.raw = make([][]int64, len(nodeScorers))
		c.base = zeros(c.base, n)
		c.scoreVersions = zeros(c.scoreVersions, n)
		c.scoredAt = -1
		for i := range nodeScorers {
			if nodeScorers[i].NodeLocal {
				c.raw[i] = make([]int64, n)
			}
		}
	}
	everywhere := len(places) == n
	if changed, known := attempt.Snapshot.Changed(c.scoredAt); everywhere && c.scoredAt >= 0 && known {
		for _, place := range changed {
			before := c.base[place]
			c.updateScore(attempt, scorers, nodeScorers, place)
			c.updateTop(place, before)
		}
	} else {
		c.top = c.top[:0]
		for _, place := range places {
			c.updateScore(attempt, scorers, nodeScorers, place)
		}
	}
	if c.scoredAt = -1; everywhere {
		c.scoredAt = attempt.Snapshot.Version()
	}
}

// updateScore updates the scores of the node at a place.
func (c *class) updateScore(attempt *framework.Attempt, scorers []framework.Weighted, nodeScorers []framework.NodeScorer, place int32) {
	v := attempt.Snapshot.Versions[place]
	if c.scoreVersions[place] == v {
		return
	}
	c.scoreVersions[place] = v
	c.base[place] = 0
	for i, raw := range c.raw {
		if raw == nil {
			continue
		}
		raw[place] = nodeScorers[i].Score(attempt.Snapshot.Nodes[place])
		if nodeScorers[i].Normalize == nil {
			c.base[place] += raw[place] * scorers[i].Weight
		}
	}
}

// updateTop updates top after the base of a place has changed; before is the previous base.
func (c *class) updateTop(place int32, before int64) {
	if len(c.top) == 0 {
		return
	}
	at, found := slices.BinarySearch(c.top, place)
	most := before
	now := c.base[place]
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
			out = append(out, int32(i)) // there are fewer nodes
		}
	}
	return out
}
