// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math/rand/v2"
	"sync"
	"time"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Engine chooses a node for a pod: it is a function from a pod and a snapshot to an Attempt, and does no I/O. It is not
// safe for concurrent use. Most of its fields are buffers that the next attempt reuses.
type Engine struct {
	filterers                []framework.Weighted
	scorers                  []framework.Weighted
	parallelism              int
	percentageOfNodesToScore int
	rand                     *rand.Rand

	feasible []*state.NodeInfo   // buffer for Attempt.Feasible
	refused  []framework.Refusal // buffer for Attempt.Refused

	next        int // index of the node where the next attempt starts, so that all nodes are tried equally often
	attempt     framework.Attempt
	scores      [][]int64
	raw         [][]int64
	bestBuffer  []int32                // buffer for Attempt.Best
	nodeScorers []framework.NodeScorer // of this attempt, by scorer; zero: the scorer treats all nodes as equal
	results     []*framework.Status
	places      []int32 // of the feasible nodes in Snapshot.Nodes, if filterAll was used
	classes     map[string]*class
	class       *class // of the attempt's pod; nil: filterAll was not used
	clock       int64  // counts attempts
	attempts    int64  // counts attempts, those without classes too
	observer    framework.Observe
	key         []byte // buffer for the key of the class
}

// NewEngine returns an engine for a profile. parallelism is the maximum number of goroutines, which are used in large
// clusters. seed seeds the random choice among nodes with equal scores.
func NewEngine(p *framework.Profile, parallelism int, seed uint64) *Engine {
	engine := &Engine{
		observer:                 p.Observe,
		classes:                  map[string]*class{},
		filterers:                p.At(framework.AtFilter),
		parallelism:              max(parallelism, 1),
		percentageOfNodesToScore: int(p.PercentageOfNodesToScore),
	}
	engine.rand = rand.New(rand.NewPCG(seed, seed)) // the choice among equal nodes is not a secret
	for _, w := range p.At(framework.AtScore) {
		if w.Weight > 0 {
			engine.scorers = append(engine.scorers, w)
		}
	}
	return engine
}

// Limits of the search for feasible nodes, as in kube-scheduler: with minFeasible nodes or more it stops when a
// percentage of them is feasible. The percentage decreases with the size of the cluster.
const (
	minFeasible     = 100
	basePercent     = 50
	nodesPerPercent = 125
	minPercent      = 5
	// up to this number of nodes a single feasible node is scored too: it is cheap, and explain shows the scores
	alwaysScored     = 16
	parallelFromHere = 512 // minimum number of nodes for which goroutines are used
)

// FeasibleNodesToFind returns the number of feasible nodes at which the search among n nodes stops. percent is
// percentageOfNodesToScore; 0: not configured.
func FeasibleNodesToFind(n, percent int) int {
	if n < minFeasible || percent >= 100 {
		return n
	}
	if percent == 0 {
		percent = max(basePercent-n/nodesPerPercent, minPercent)
	}
	return max(n*percent/100, minFeasible)
}

// Decide makes one attempt. Nominated pods for which ignoreNominated returns true do not count; nil: none is ignored.
// The result is valid until the next call.
func (e *Engine) Decide(pod *state.PodInfo, s *state.Snapshot, ignoreNominated func(*state.PodInfo) bool) *framework.Attempt {
	a := e.findFeasible(pod, s, ignoreNominated, nil, false)
	e.choose(a, nil)
	return a
}

// FindFeasible is the first half of Decide for pods that extenders are interested in: it finds FeasibleNodesToFind
// nodes, and chooses none. The result is valid until the next call.
func (e *Engine) FindFeasible(pod *state.PodInfo, s *state.Snapshot, ignoreNominated func(
	*state.PodInfo,
) bool,
) *framework.Attempt {
	return e.findFeasible(pod, s, ignoreNominated, nil, true)
}

// DecideWith is the second half: it chooses among the nodes that FindFeasible found, with the extenders' results. s is
// a new snapshot: a node that was feasible in the first half may not be feasible now.
func (e *Engine) DecideWith(results *framework.ExtenderResults, pod *state.PodInfo, s *state.Snapshot, but func(
	*state.PodInfo,
) bool,
) *framework.Attempt {
	a := e.findFeasible(pod, s, but, results, true)
	e.choose(a, results)
	a.Took.Filter += results.FilterTook
	a.Took.Score += results.ScoreTook
	return a
}

// findFeasible finds the feasible nodes: all, or FeasibleNodesToFind of them. With results it filters only the nodes
// that were sent to the extenders. noFilterAll: filterAll must not be used.
func (e *Engine) findFeasible(pod *state.PodInfo, snapshot *state.Snapshot, ignoreNominated func(
	*state.PodInfo,
) bool, results *framework.ExtenderResults, noFilterAll bool,
) *framework.Attempt {
	begin := time.Now()
	e.class = nil
	attempt := &e.attempt
	*attempt = framework.Attempt{
		Pod:         pod,
		Cycle:       &framework.CycleState{},
		Snapshot:    snapshot,
		Nominations: framework.Nominations{IgnoreNominated: ignoreNominated},
		Filtered: framework.Filtered{
			Filters:  attempt.Filters[:0],
			Refused:  e.refused[:0],
			Feasible: e.feasible[:0],
		},
		Scored: framework.Scored{
			ScoredBy:    attempt.ScoredBy[:0],
			RuleScorers: attempt.RuleScorers[:0],
			Raw:         attempt.Raw[:0],
			Scores:      attempt.Scores[:0],
		},
	}
	if e.attempts++; e.attempts%sampleEvery == 1 {
		attempt.Observe = e.observer
	}
	if len(snapshot.Nodes) == 0 {
		return attempt
	}
	nodes := e.prepare(attempt)
	attempt.Took.PreFilter = time.Since(begin)
	nodeLocal := countNodeLocal(attempt.Filters)
	switch {
	case attempt.PreFilterStatus != nil || attempt.Failed != nil:
	case results != nil:
		filterSent(results, attempt, nodes, func(n *state.NodeInfo) *framework.Status {
			if st := framework.Check(attempt.Filters, n); st != nil {
				return st
			}
			return checkWithNominated(attempt, n, snapshot.NominatedTo(n.Name))
		})
	case !noFilterAll && e.tryNominated(attempt):
	case !noFilterAll && e.canFilterAll(attempt, nodes, nodeLocal):
		e.class = e.classOf(attempt, nodeLocal)
		e.filterAll(attempt, e.class)
	default:
		e.filter(attempt, nodes, nodeLocal)
	}
	if attempt.Failed != nil {
		attempt.Feasible = attempt.Feasible[:0]
	}
	if attempt.Refusals == nil {
		e.refused = attempt.Refused
	}
	attempt.Took.Filter = time.Since(begin)
	return attempt
}

// choose scores the feasible nodes and chooses the best one.
func (e *Engine) choose(attempt *framework.Attempt, results *framework.ExtenderResults) {
	switch begin := time.Now(); {
	case len(attempt.Feasible) == 1 && len(attempt.Snapshot.Nodes) > alwaysScored:
		attempt.Chosen = attempt.Feasible[0]
	case len(attempt.Feasible) > 0:
		e.score(attempt)
		if results != nil {
			addExtenderScores(results, attempt)
		}
		attempt.ChosenAt = int(e.best(attempt))
		attempt.Chosen = attempt.Feasible[attempt.ChosenAt]
		attempt.Took.Score = time.Since(begin)
	}
	observeOnNode(attempt, e.scorers, e.nodeScorers)
	clear(e.nodeScorers)
}

// prepare runs every PreFilter. It returns the nodes to filter: all nodes of the snapshot, or those of the
// first NodeNames.
func (e *Engine) prepare(attempt *framework.Attempt) []*state.NodeInfo {
	nodes := attempt.Snapshot.Nodes
	if attempt.Pod.Err != nil {
		attempt.PreFilterStatus = framework.NewStatus("InterPodAffinity", framework.Unresolvable,
			attempt.Pod.Err.Error())
		return nil
	}
	for _, filterer := range e.filterers {
		begin := startOf(attempt)
		nodeFilter, st := filterer.PreFilter(attempt.Cycle, attempt.Pod, attempt.Snapshot)
		if nodeFilter.Filter == nil && st == nil {
			observe(attempt, filterer.Name, "PreFilter", statusSkip, begin)
			continue
		}
		observe(attempt, filterer.Name, "PreFilter", framework.StatusName(st), begin)
		if st != nil && st.Code == framework.Failed {
			attempt.Failed = st
			return nil
		}
		if st != nil {
			attempt.PreFilterStatus = st
			return nil
		}
		attempt.Filters = append(attempt.Filters, framework.NamedFilter{Plugin: filterer.Name, NodeFilter: nodeFilter})
		if nodeFilter.NodeNames != nil && attempt.ExcludedBy == nil {
			nodes = e.nodesByName(attempt, filterer.Name, nodeFilter.NodeNames)
		}
	}
	return nodes
}

// nodesByName returns the named nodes; the others are refused without running the filters.
func (e *Engine) nodesByName(a *framework.Attempt, plugin string, names []string) []*state.NodeInfo {
	nodes := make([]*state.NodeInfo, 0, len(names))
	for _, name := range names {
		if n := a.Snapshot.Node(name); n != nil {
			nodes = append(nodes, n)
		}
	}
	if a.Excluded = len(a.Snapshot.Nodes) - len(nodes); a.Excluded > 0 {
		a.ExcludedBy = framework.NewStatus(plugin, framework.Unresolvable,
			"node(s) didn't satisfy plugin(s) ["+plugin+"]")
	}
	return nodes
}

// filter filters nodes until FeasibleNodesToFind of them are feasible. It starts at the node where the last attempt
// stopped.
func (e *Engine) filter(attempt *framework.Attempt, nodes []*state.NodeInfo, nodeLocal int) {
	enough := FeasibleNodesToFind(len(nodes), e.percentageOfNodesToScore)
	if len(nodes) == 0 {
		return
	}
	start := e.next % len(nodes)
	check := e.checker(attempt, nodes, nodeLocal)
	for attempt.EvaluatedNodes < len(nodes) && len(attempt.Feasible) < enough && attempt.Failed == nil {
		if left := len(nodes) - attempt.EvaluatedNodes; e.parallelism > 1 && left >= parallelFromHere {
			e.block(attempt, nodes, start, min(left, max(2*(enough-len(attempt.Feasible)), parallelFromHere)), enough,
				check)
			continue
		}
		i := (start + attempt.EvaluatedNodes) % len(nodes)
		n := nodes[i]
		record(attempt, n, check(i, n))
	}
	e.next = start + attempt.EvaluatedNodes
	e.feasible = attempt.Feasible
}

// record records the result of the filters for one node.
func record(a *framework.Attempt, n *state.NodeInfo, st *framework.Status) {
	a.EvaluatedNodes++
	switch {
	case st == nil:
		a.Feasible = append(a.Feasible, n)
	case st.Code == framework.Failed:
		a.Failed = st
	default:
		a.Refused = append(a.Refused, framework.Refusal{Node: n, Status: st})
	}
}

// checker returns the function that filters the node at an index of nodes. Several goroutines call it, at most once for
// each index.
func (e *Engine) checker(attempt *framework.Attempt, nodes []*state.NodeInfo, nodeLocal int) func(int, *state.NodeInfo) *framework.Status {
	switch {
	case attempt.Snapshot.AnyNominated():
		return func(_ int, n *state.NodeInfo) *framework.Status {
			if st := framework.Check(attempt.Filters, n); st != nil {
				return st
			}
			return checkWithNominated(attempt, n, attempt.Snapshot.NominatedTo(n.Name))
		}
	case nodeLocal == 0 || len(nodes) != len(attempt.Snapshot.Nodes): // a class is indexed like the snapshot's nodes
		return func(_ int, n *state.NodeInfo) *framework.Status { return framework.Check(attempt.Filters, n) }
	}
	c := e.classOf(attempt, nodeLocal)
	c.filteredAt = -1 // only a part of the nodes is filtered, without counting the refused ones
	return func(i int, n *state.NodeInfo) *framework.Status {
		if st := c.updateStatus(attempt, i); st != nil {
			return st
		}
		return framework.Check(attempt.Filters[nodeLocal:], n)
	}
}

// block filters the next size nodes with several goroutines. The outcome is the same as one by one: results after the
// last feasible node that is needed are discarded.
func (e *Engine) block(attempt *framework.Attempt, nodes []*state.NodeInfo, start, size, enough int, check func(
	int, *state.NodeInfo,
) *framework.Status,
) {
	if cap(e.results) < size {
		e.results = make([]*framework.Status, size)
	}
	results := e.results[:size]
	var wg sync.WaitGroup
	chunk := (size + e.parallelism - 1) / e.parallelism
	first := attempt.EvaluatedNodes
	filterRange := func(from, to int) {
		for i := from; i < to; i++ {
			at := (start + first + i) % len(nodes)
			results[i] = check(at, nodes[at])
		}
	}
	for from := chunk; from < size; from += chunk {
		wg.Go(func() { filterRange(from, min(from+chunk, size)) })
	}
	filterRange(0, min(chunk, size))
	wg.Wait()
	for i, st := range results {
		if len(attempt.Feasible) >= enough || attempt.Failed != nil {
			return
		}
		record(attempt, nodes[(start+first+i)%len(nodes)], st)
	}
}

// checkWithNominated filters a feasible node again, with its nominated pods added to it. nil: the pod fits with them.
func checkWithNominated(a *framework.Attempt, n *state.NodeInfo, nominated []*state.PodInfo) *framework.Status {
	relevant := a.RelevantNominatedPods(nominated)
	if len(relevant) == 0 {
		return nil
	}
	return framework.Check(framework.AdjustedFilters(a.Filters, n, relevant, nil), n.With(relevant, nil))
}

// score scores the feasible nodes.
func (e *Engine) score(attempt *framework.Attempt) {
	begin := time.Now()
	for len(e.scores) < len(e.scorers)+1 {
		e.scores = append(e.scores, nil)
		e.raw = append(e.raw, nil)
	}
	e.preScore(attempt)
	if e.class != nil && e.sample(attempt) {
		e.preScore(attempt)
	}
	attempt.Took.PreScore = time.Since(begin)
	if e.class != nil {
		e.scoreAll(attempt, e.class)
	} else {
		e.scoreEach(attempt)
	}
}

func (e *Engine) preScore(a *framework.Attempt) {
	e.nodeScorers = e.nodeScorers[:0]
	for _, w := range e.scorers {
		begin := startOf(a)
		scorer := w.PreScore(a.Cycle, a.Pod, a.Snapshot, a.Feasible)
		status := statusSkip
		if scorer.Score != nil {
			status = framework.StatusName(nil)
		}
		observe(a, w.Name, "PreScore", status, begin)
		e.nodeScorers = append(e.nodeScorers, scorer)
	}
}

// scoreEach scores the feasible nodes one by one.
func (e *Engine) scoreEach(attempt *framework.Attempt) {
	n := len(attempt.Feasible)
	attempt.Totals = buffer(e.scores, len(e.scorers), n)
	clear(attempt.Totals)
	for i, weighted := range e.scorers {
		scorer := &e.nodeScorers[i]
		if scorer.Score == nil {
			continue
		}
		raw := buffer(e.raw, i, n)
		scores := buffer(e.scores, i, n)
		begin := startOf(attempt)
		for j, node := range attempt.Feasible {
			raw[j] = scorer.Score(node)
		}
		copy(scores, raw)
		normalize(scorer, scores)
		observeScores(attempt, weighted.Name, scorer, begin, n)
		for j, s := range scores {
			attempt.Totals[j] += s * weighted.Weight
		}
		addScored(attempt, weighted, scorer, raw, scores)
	}
}

// addScored records the scores of a plugin or extender. scorer is zero for an extender.
func addScored(a *framework.Attempt, by framework.Weighted, scorer *framework.NodeScorer, raw, scores []int64) {
	a.ScoredBy = append(a.ScoredBy, by)
	a.RuleScorers = append(a.RuleScorers, scorer.Rules)
	a.Raw = append(a.Raw, raw)
	a.Scores = append(a.Scores, scores)
}

func normalize(s *framework.NodeScorer, scores []int64) {
	if s.Normalize != nil {
		s.Normalize(scores)
	}
}

// buffer returns kept[i], resized to n scores. The next attempt reuses it.
func buffer(kept [][]int64, i, n int) []int64 {
	if cap(kept[i]) < n {
		kept[i] = make([]int64, n, max(n, 2*cap(kept[i])))
	}
	return kept[i][:n]
}

// best returns the index of the largest total. If several are equal, it chooses one of them at random.
func (e *Engine) best(a *framework.Attempt) int32 {
	if len(a.Best) == 0 {
		e.bestBuffer = largest(e.bestBuffer[:0], a.Totals)
		a.Best = e.bestBuffer
	}
	if len(a.Best) == 1 {
		return a.Best[0]
	}
	return a.Best[e.rand.IntN(len(a.Best))]
}

// FilterNode runs the filters for a pod on one node; nil: the pod fits.
func (e *Engine) FilterNode(pod *state.PodInfo, s *state.Snapshot, node string) *framework.Status {
	attempt := &framework.Attempt{Pod: pod, Cycle: &framework.CycleState{}, Snapshot: s}
	e.prepare(attempt)
	n := s.Node(node)
	switch {
	case attempt.Failed != nil:
		return attempt.Failed
	case attempt.PreFilterStatus != nil:
		return attempt.PreFilterStatus
	case n == nil:
		return framework.NewStatus("NodeName", framework.Unresolvable, "node(s) have gone")
	}
	return framework.Check(attempt.Filters, n)
}
