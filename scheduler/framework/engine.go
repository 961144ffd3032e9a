// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"math/rand/v2"
	"sync"
	"time"

	"keelson/scheduler/state"
)

// Engine chooses a node for a pod: it is a function from a pod and a snapshot to an Attempt, and does no I/O. It is not safe for concurrent
// use. Most of its fields are buffers that the next attempt reuses.
type Engine struct {
	filterers   []Filterer
	scorers     []Weighted
	parallelism int
	percent     int
	rand        *rand.Rand

	feasible []*state.NodeInfo // buffer for Attempt.Feasible

	next    int // index of the node where the next attempt starts, so that all nodes are tried equally often
	attempt Attempt
	scores  [][]int64
	raw     [][]int64
	leaders []int32      // buffer for Attempt.Best
	ranking []NodeScorer // of this attempt, by scorer; nil: the scorer treats all nodes as equal
	results []*Status
	places  []int32 // of the feasible nodes in Snapshot.Nodes, if filterAll was used
	classes map[string]*class
	class   *class // of the attempt's pod; nil: filterAll was not used
	clock   int64  // counts attempts
	key     []byte // buffer for the key of the class
}

// NewEngine returns an engine for a profile. parallelism is the maximum number of goroutines, which are used in large clusters. seed seeds
// the random choice among nodes with equal scores.
func NewEngine(p *Profile, parallelism int, seed uint64) *Engine {
	e := &Engine{classes: map[string]*class{}, filterers: Of[Filterer](p, AtFilter), parallelism: max(parallelism, 1), percent: int(p.PercentageOfNodes)}
	e.rand = rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // the choice among equal nodes is not a secret
	for _, w := range p.At(AtScore) {
		if _, ok := w.Plugin.(Scorer); ok && w.Weight > 0 {
			e.scorers = append(e.scorers, w)
		}
	}
	return e
}

// Limits of the search for feasible nodes, as in kube-scheduler: with minFeasible nodes or more it stops when a percentage of them is
// feasible. The percentage decreases with the size of the cluster.
const (
	minFeasible      = 100
	basePercent      = 50
	nodesPerPercent  = 125
	minPercent       = 5
	alwaysScored     = 16  // up to this number of nodes a single feasible node is scored too: it is cheap, and explain shows the scores
	parallelFromHere = 512 // minimum number of nodes for which goroutines are used
)

// Enough returns the number of feasible nodes at which the search among n nodes stops. percent is percentageOfNodesToScore; 0: not
// configured.
func Enough(n, percent int) int {
	if n < minFeasible || percent >= 100 {
		return n
	}
	if percent == 0 {
		percent = max(basePercent-n/nodesPerPercent, minPercent)
	}
	return max(n*percent/100, minFeasible)
}

// Decide makes one attempt. Nominated pods for which but returns true are ignored; nil: none is ignored. The result is valid until the
// next call.
func (e *Engine) Decide(pod *state.PodInfo, s *state.Snapshot, but func(*state.PodInfo) bool) *Attempt {
	a := e.fit(pod, s, but, nil, false)
	e.choose(a, nil)
	return a
}

// Fit is the first half of Decide for pods that extenders are interested in: it finds Enough feasible nodes, and chooses none. but is as
// for Decide. The result is valid until the next call.
func (e *Engine) Fit(pod *state.PodInfo, s *state.Snapshot, but func(*state.PodInfo) bool) *Attempt {
	return e.fit(pod, s, but, nil, true)
}

// DecideWith is the second half: it chooses among the nodes that Fit found, with the extenders' responses. s is a new snapshot: a node that
// was feasible in the first half may not be feasible now.
func (e *Engine) DecideWith(advice *Advice, pod *state.PodInfo, s *state.Snapshot, but func(*state.PodInfo) bool) *Attempt {
	a := e.fit(pod, s, but, advice, true)
	e.choose(a, advice)
	a.FilterTook += advice.FilterTook
	a.ScoreTook += advice.ScoreTook
	return a
}

// fit finds the feasible nodes: all, or Enough of them. With advice it filters only the nodes that were sent to the extenders. part:
// filterAll must not be used.
func (e *Engine) fit(pod *state.PodInfo, s *state.Snapshot, but func(*state.PodInfo) bool, advice *Advice, part bool) *Attempt {
	begin := time.Now()
	e.class = nil
	a := &e.attempt
	*a = Attempt{Pod: pod, Cycle: &CycleState{}, Snapshot: s, but: but, Filters: a.Filters[:0], Refused: a.Refused[:0], Feasible: e.feasible[:0],
		ScoredBy: a.ScoredBy[:0], Ruled: a.Ruled[:0], Raw: a.Raw[:0], Scores: a.Scores[:0]}
	if len(s.Nodes) == 0 {
		return a
	}
	nodes := e.prepare(a)
	a.PreFilterTook = time.Since(begin)
	local := localFilters(a.Filters)
	switch {
	case a.All != nil || a.Failed != nil:
	case advice != nil:
		advice.apply(a, nodes, func(n *state.NodeInfo) *Status {
			if st := Check(a.Filters, n); st != nil {
				return st
			}
			return a.checkComing(n, s.NominatedTo(n.Name))
		})
	case !part && e.wholesale(a, nodes, local):
		e.class = e.classOf(a, local)
		e.filterAll(a, e.class)
	default:
		e.filter(a, nodes, local)
	}
	if a.Failed != nil {
		a.Feasible = a.Feasible[:0]
	}
	a.FilterTook = time.Since(begin)
	return a
}

// choose scores the feasible nodes and chooses the best one.
func (e *Engine) choose(a *Attempt, advice *Advice) {
	switch begin := time.Now(); {
	case len(a.Feasible) == 1 && len(a.Snapshot.Nodes) > alwaysScored:
		a.Chosen = a.Feasible[0]
	case len(a.Feasible) > 0:
		e.score(a)
		if advice != nil {
			advice.score(a)
		}
		a.ChosenAt = int(e.best(a))
		a.Chosen = a.Feasible[a.ChosenAt]
		a.ScoreTook = time.Since(begin)
	}
}

// prepare runs every PreFilter. It returns the nodes to filter: all nodes of the snapshot, or those that a Narrower names.
func (e *Engine) prepare(a *Attempt) []*state.NodeInfo {
	nodes := a.Snapshot.Nodes
	if a.Pod.Err != nil {
		a.All = Refuse("InterPodAffinity", Unresolvable, a.Pod.Err.Error())
		return nil
	}
	for _, p := range e.filterers {
		f, st := p.PreFilter(a.Cycle, a.Pod, a.Snapshot)
		if st != nil && st.Code == Failed {
			a.Failed = st
			return nil
		}
		if st != nil {
			a.All = st
			return nil
		}
		if f == nil {
			continue
		}
		a.Filters = append(a.Filters, NamedFilter{p, f})
		n, ok := f.(Narrower)
		if !ok || a.NarrowedBy != nil {
			continue
		}
		if names := n.Narrow(); names != nil {
			nodes = e.narrow(a, p, names)
		}
	}
	return nodes
}

// narrow returns the named nodes; the others are refused without running the filters.
func (e *Engine) narrow(a *Attempt, p Plugin, names []string) []*state.NodeInfo {
	nodes := make([]*state.NodeInfo, 0, len(names))
	for _, name := range names {
		if n := a.Snapshot.Node(name); n != nil {
			nodes = append(nodes, n)
		}
	}
	if a.Narrowed = len(a.Snapshot.Nodes) - len(nodes); a.Narrowed > 0 {
		a.NarrowedBy = Refuse(p.Name(), Unresolvable, "node(s) didn't satisfy plugin(s) ["+p.Name()+"]")
	}
	return nodes
}

// filter filters nodes until Enough are feasible. It starts at the node where the last attempt stopped.
func (e *Engine) filter(a *Attempt, nodes []*state.NodeInfo, local int) {
	enough := Enough(len(nodes), e.percent)
	if len(nodes) == 0 {
		return
	}
	start := e.next % len(nodes)
	check := e.checker(a, nodes, local)
	for a.Looked < len(nodes) && len(a.Feasible) < enough && a.Failed == nil {
		if left := len(nodes) - a.Looked; e.parallelism > 1 && left >= parallelFromHere {
			e.block(a, nodes, start, min(left, max(2*(enough-len(a.Feasible)), parallelFromHere)), enough, check)
			continue
		}
		i := (start + a.Looked) % len(nodes)
		n := nodes[i]
		a.looked(n, check(i, n))
	}
	e.next, e.feasible = start+a.Looked, a.Feasible
}

// looked records the result of the filters for one node.
func (a *Attempt) looked(n *state.NodeInfo, st *Status) {
	a.Looked++
	switch {
	case st == nil:
		a.Feasible = append(a.Feasible, n)
	case st.Code == Failed:
		a.Failed = st
	default:
		a.Refused = append(a.Refused, Refusal{n, st})
	}
}

// checker returns the function that filters the node at an index of nodes. Several goroutines call it, at most once for each index.
func (e *Engine) checker(a *Attempt, nodes []*state.NodeInfo, local int) func(int, *state.NodeInfo) *Status {
	switch {
	case a.Snapshot.AnyNominated():
		return func(_ int, n *state.NodeInfo) *Status {
			if st := Check(a.Filters, n); st != nil {
				return st
			}
			return a.checkComing(n, a.Snapshot.NominatedTo(n.Name))
		}
	case local == 0 || len(nodes) != len(a.Snapshot.Nodes): // a class is indexed like the snapshot's nodes
		return func(_ int, n *state.NodeInfo) *Status { return Check(a.Filters, n) }
	}
	c := e.classOf(a, local)
	c.seen = -1 // only a part of the nodes is filtered, without counting the refused ones
	return func(i int, n *state.NodeInfo) *Status {
		if st := c.judge(a, i); st != nil {
			return st
		}
		return Check(a.Filters[local:], n)
	}
}

// block filters the next size nodes with several goroutines. The outcome is the same as one by one: results after the
// Enough-th feasible node are discarded.
func (e *Engine) block(a *Attempt, nodes []*state.NodeInfo, start, size, enough int, check func(int, *state.NodeInfo) *Status) {
	if cap(e.results) < size {
		e.results = make([]*Status, size)
	}
	results := e.results[:size]
	var wg sync.WaitGroup
	chunk := (size + e.parallelism - 1) / e.parallelism
	first := a.Looked
	judge := func(from, to int) {
		for i := from; i < to; i++ {
			at := (start + first + i) % len(nodes)
			results[i] = check(at, nodes[at])
		}
	}
	for from := chunk; from < size; from += chunk {
		wg.Go(func() { judge(from, min(from+chunk, size)) })
	}
	judge(0, min(chunk, size))
	wg.Wait()
	for i, st := range results {
		if len(a.Feasible) >= enough || a.Failed != nil {
			return
		}
		a.looked(nodes[(start+first+i)%len(nodes)], st)
	}
}

// checkComing filters a feasible node again, with its nominated pods added to it. nil: the pod fits beside them.
func (a *Attempt) checkComing(n *state.NodeInfo, nominated []*state.PodInfo) *Status {
	coming := a.Counting(nominated)
	if len(coming) == 0 {
		return nil
	}
	return Check(Adjusted(a.Filters, n, coming, nil), n.With(coming, nil))
}

// Counting returns the nominated pods for which the attempt's pod must leave room: other pods of equal or higher priority.
func (a *Attempt) Counting(nominated []*state.PodInfo) []*state.PodInfo {
	var coming []*state.PodInfo
	for _, p := range nominated {
		if p.Priority >= a.Pod.Priority && p.Pod.UID != a.Pod.Pod.UID && (a.but == nil || !a.but(p)) {
			coming = append(coming, p)
		}
	}
	return coming
}

// Adjusted returns the filters for a state in which the added pods are on n and the removed ones are not.
func Adjusted(filters []NamedFilter, n *state.NodeInfo, added, removed []*state.PodInfo) []NamedFilter {
	out := make([]NamedFilter, len(filters))
	for i, f := range filters {
		out[i] = f
		if adj, ok := f.NodeFilter.(PreFilterExtensions); ok {
			out[i].NodeFilter = adj.Adjust(n, added, removed)
		}
	}
	return out
}

// score scores the feasible nodes.
func (e *Engine) score(a *Attempt) {
	begin := time.Now()
	for len(e.scores) < len(e.scorers)+1 {
		e.scores, e.raw = append(e.scores, nil), append(e.raw, nil)
	}
	e.preScore(a)
	if e.class != nil && e.sample(a) {
		e.preScore(a)
	}
	a.PreScoreTook = time.Since(begin)
	if e.class != nil {
		e.scoreAll(a, e.class)
	} else {
		e.scoreEach(a)
	}
	clear(e.ranking)
}

func (e *Engine) preScore(a *Attempt) {
	e.ranking = e.ranking[:0]
	for _, w := range e.scorers {
		p, _ := w.Plugin.(Scorer) // NewEngine keeps only Scorers
		e.ranking = append(e.ranking, p.PreScore(a.Cycle, a.Pod, a.Snapshot, a.Feasible))
	}
}

// scoreEach scores the feasible nodes one by one.
func (e *Engine) scoreEach(a *Attempt) {
	n := len(a.Feasible)
	a.Totals = buffer(e.scores, len(e.scorers), n)
	clear(a.Totals)
	for i, w := range e.scorers {
		scorer := e.ranking[i]
		if scorer == nil {
			continue
		}
		raw, scores := buffer(e.raw, i, n), buffer(e.scores, i, n)
		for j, node := range a.Feasible {
			raw[j] = scorer.Score(node)
		}
		copy(scores, raw)
		scorer.Normalize(scores)
		for j, s := range scores {
			a.Totals[j] += s * w.Weight
		}
		a.scored(w, scorer, raw, scores)
	}
}

// scored records the scores of a plugin or extender. scorer is nil for an extender.
func (a *Attempt) scored(by Weighted, scorer NodeScorer, raw, scores []int64) {
	ruled, _ := scorer.(Ruled)
	a.ScoredBy, a.Ruled = append(a.ScoredBy, by), append(a.Ruled, ruled)
	a.Raw, a.Scores = append(a.Raw, raw), append(a.Scores, scores)
}

// buffer returns kept[i], resized to n scores. The next attempt reuses it.
func buffer(kept [][]int64, i, n int) []int64 {
	if cap(kept[i]) < n {
		kept[i] = make([]int64, n, max(n, 2*cap(kept[i])))
	}
	return kept[i][:n]
}

// best returns the index of the largest total. If several are equal, it chooses one of them at random.
func (e *Engine) best(a *Attempt) int32 {
	if len(a.Best) == 0 {
		e.leaders = largest(e.leaders[:0], a.Totals)
		a.Best = e.leaders
	}
	if len(a.Best) == 1 {
		return a.Best[0]
	}
	return a.Best[e.rand.IntN(len(a.Best))]
}
