// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"slices"
	"time"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

var noVictims = framework.NewStatus(Name, framework.Unresolvable, "No preemption victims found for incoming pod")

// lowerPriorityPods returns the pods of a node that have a lower priority than the attempt's pod.
func lowerPriorityPods(a *framework.Attempt, n *state.NodeInfo) []*state.PodInfo {
	var pods []*state.PodInfo
	for _, p := range n.Pods {
		if p.Priority < a.Pod.Priority {
			pods = append(pods, p)
		}
	}
	return pods
}

// selectVictims returns the fewest and least important of the potential victims on info whose eviction lets the
// attempt's pod fit, or why that does not help.
func selectVictims(
	a *framework.Attempt, info *state.NodeInfo, potential []*state.PodInfo, budgets *pdbs,
) (*framework.Preemption, *framework.Status) {
	if len(potential) == 0 {
		return nil, noVictims
	}
	t := dryRun{
		a:         a,
		n:         info,
		removed:   potential,
		nominated: a.RelevantNominatedPods(a.Snapshot.NominatedTo(info.Name)),
	}
	if st := t.fits(); st != nil {
		return nil, st
	}
	potential = slices.SortedFunc(slices.Values(potential), compareImportance)
	violating, nonViolating := budgets.splitByViolation(potential)
	preemption := &framework.Preemption{Node: info.Name}
	for _, p := range violating {
		if !t.reprieve(p) {
			preemption.PDBViolations++
		}
	}
	for _, p := range nonViolating {
		t.reprieve(p)
	}
	if len(t.removed) == 0 {
		return nil, noVictims // plugins did not refuse this node, or do so no more
	}
	preemption.Victims = t.removed
	preemption.Reprieved = len(potential) - len(t.removed)
	slices.SortFunc(preemption.Victims, compareImportance)
	return preemption, nil
}

// dryRun is a node without some of its pods.
type dryRun struct {
	a                  *framework.Attempt
	n                  *state.NodeInfo
	nominated, removed []*state.PodInfo
}

func (t *dryRun) fits() *framework.Status {
	if len(t.nominated) > 0 {
		if st := framework.Check(framework.AdjustedFilters(t.a.Filters, t.n, t.nominated, t.removed),
			t.n.With(t.nominated, t.removed)); st != nil {
			return st
		}
	}
	return framework.Check(framework.AdjustedFilters(t.a.Filters, t.n, nil, t.removed), t.n.With(nil, t.removed))
}

// reprieve keeps a pod if the attempt's pod fits nevertheless.
func (t *dryRun) reprieve(p *state.PodInfo) bool {
	all := t.removed
	t.removed = slices.DeleteFunc(slices.Clone(all), func(o *state.PodInfo) bool { return o == p })
	if t.fits() == nil {
		return true
	}
	t.removed = all
	return false
}

// compareImportance orders pods by importance, the most important first: by priority, then by start time.
func compareImportance(x, y *state.PodInfo) int {
	if c := cmp.Compare(y.Priority, x.Priority); c != 0 {
		return c
	}
	if c := startTime(x).Compare(startTime(y)); c != 0 {
		return c
	}
	return cmp.Compare(x.Key, y.Key)
}

// startTime returns when a pod was started; a pod that was not started yet has a time in the far future.
func startTime(p *state.PodInfo) time.Time {
	if t := p.Pod.Status.StartTime; t != nil {
		return t.Time
	}
	return farFuture
}

var farFuture = time.Unix(1<<40, 0)

// criteria decide which of two candidates costs less: the first in which they differ decides; the smaller number is
// better.
var criteria = [...]struct {
	why string
	of  func(c *framework.Preemption) int64
}{
	{"it violates fewer disruption budgets", func(c *framework.Preemption) int64 { return int64(c.PDBViolations) }},
	{"its most important victim has a lower priority", func(c *framework.Preemption) int64 {
		return int64(c.Victims[0].Priority)
	}},
	{"its victims' priorities sum up to less", func(c *framework.Preemption) int64 { return sum(c.Victims) }},
	{"it has fewer victims", func(c *framework.Preemption) int64 { return int64(len(c.Victims)) }},
	{"its most important victim has run for a shorter time", func(c *framework.Preemption) int64 {
		return -earliest(c.Victims).Unix()
	}},
}

// cost is the cost of a candidate by criterion.
type cost [len(criteria)]int64

func costOf(c *framework.Preemption) (h cost) {
	for i := range criteria {
		h[i] = criteria[i].of(c)
	}
	return h
}

// compare orders candidates, and says which criterion decided; empty: none did.
func (h *cost) compare(o *cost) (int, string) {
	for i := range h {
		if c := cmp.Compare(h[i], o[i]); c != 0 {
			return c, criteria[i].why
		}
	}
	return 0, ""
}

// Best returns the candidate that costs least, with the second best and the criterion that decided between the two:
// fewest violated budgets, then the lowest priority among the most important victims, the lowest sum of priorities, the
// fewest victims, and the most important victim that has run for the shortest time.
func Best(cs []*framework.Preemption) *framework.Preemption {
	costs := make([]cost, len(cs))
	for i, c := range cs {
		costs[i] = costOf(c)
	}
	return best(cs, costs)
}

// best is Best with the costs of cs.
func best(cs []*framework.Preemption, costs []cost) *framework.Preemption {
	best := 0
	second := -1
	for i := 1; i < len(cs); i++ {
		if less, _ := costs[i].compare(&costs[best]); less < 0 {
			best, second = i, best
		} else if second < 0 {
			second = i
		} else if less, _ := costs[i].compare(&costs[second]); less < 0 {
			second = i
		}
	}
	c := *cs[best]
	c.Candidates = len(cs)
	c.Why = "there was no other node"
	if second >= 0 {
		c.RunnerUp = cs[second].Node
		_, why := costs[best].compare(&costs[second])
		c.Why = cmp.Or(why, "it was found first among equals")
	}
	return &c
}

// sum adds up priorities, shifted so that none is negative: more victims never make a smaller sum.
func sum(pods []*state.PodInfo) int64 {
	var n int64
	for _, p := range pods {
		n += int64(p.Priority) + 1<<31
	}
	return n
}

// earliest returns the earliest start time of the most important victims.
func earliest(pods []*state.PodInfo) time.Time {
	first := farFuture
	for _, p := range pods {
		if p.Priority == pods[0].Priority && startTime(p).Before(first) {
			first = startTime(p)
		}
	}
	return first
}
