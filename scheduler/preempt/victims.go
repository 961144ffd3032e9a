// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"slices"
	"time"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

var noVictims = framework.Refuse(Name, framework.Unresolvable, "No preemption victims found for incoming pod")

// less returns the pods of a node that are less important than the attempt's.
func less(a *framework.Attempt, n *state.NodeInfo) []*state.PodInfo {
	var lower []*state.PodInfo
	for _, p := range n.Pods {
		if p.Priority < a.Pod.Priority {
			lower = append(lower, p)
		}
	}
	return lower
}

// victims finds the fewest and least important pods of lower that have to leave n, or says why that does not help.
func victims(a *framework.Attempt, n *state.NodeInfo, lower []*state.PodInfo, budgets *guards) (*framework.Preemption, *framework.Status) {
	if len(lower) == 0 {
		return nil, noVictims
	}
	t := trial{a: a, n: n, removed: lower, coming: a.Counting(a.Snapshot.NominatedTo(n.Name))}
	if st := t.fits(); st != nil {
		return nil, st
	}
	lower = slices.SortedFunc(slices.Values(lower), byImportance)
	protected, free := budgets.split(lower)
	c := &framework.Preemption{Node: n.Name}
	for _, p := range protected {
		if !t.spare(p) {
			c.Violations++
		}
	}
	for _, p := range free {
		t.spare(p)
	}
	if len(t.removed) == 0 {
		return nil, noVictims // plugins did not refuse this node, or do so no more
	}
	c.Victims, c.Spared = t.removed, len(lower)-len(t.removed)
	slices.SortFunc(c.Victims, byImportance)
	return c, nil
}

// trial is a node without some of its pods.
type trial struct {
	a               *framework.Attempt
	n               *state.NodeInfo
	coming, removed []*state.PodInfo
}

func (t *trial) fits() *framework.Status {
	if len(t.coming) > 0 {
		if st := framework.Check(framework.Adjusted(t.a.Filters, t.n, t.coming, t.removed), t.n.With(t.coming, t.removed)); st != nil {
			return st
		}
	}
	return framework.Check(framework.Adjusted(t.a.Filters, t.n, nil, t.removed), t.n.With(nil, t.removed))
}

// spare leaves a pod where it is if the newcomer fits nevertheless.
func (t *trial) spare(p *state.PodInfo) bool {
	all := t.removed
	t.removed = slices.DeleteFunc(slices.Clone(all), func(o *state.PodInfo) bool { return o == p })
	if t.fits() == nil {
		return true
	}
	t.removed = all
	return false
}

// byImportance puts pods with a higher priority first, and of those the ones that have run for longer.
func byImportance(x, y *state.PodInfo) int {
	if c := cmp.Compare(y.Priority, x.Priority); c != 0 {
		return c
	}
	if c := started(x).Compare(started(y)); c != 0 {
		return c
	}
	return cmp.Compare(x.Key, y.Key)
}

// started is when a pod began to run; one that has not yet counts as now, in the far future.
func started(p *state.PodInfo) time.Time {
	if t := p.Pod.Status.StartTime; t != nil {
		return t.Time
	}
	return farFuture
}

var farFuture = time.Unix(1<<40, 0)

// criteria say which of two candidates hurts less: the first that tells them apart decides, by less of a number.
var criteria = [...]struct {
	why string
	of  func(c *framework.Preemption) int64
}{
	{"it violates fewer disruption budgets", func(c *framework.Preemption) int64 { return int64(c.Violations) }},
	{"its most important victim has a lower priority", func(c *framework.Preemption) int64 { return int64(c.Victims[0].Priority) }},
	{"its victims' priorities sum up to less", func(c *framework.Preemption) int64 { return sum(c.Victims) }},
	{"it has fewer victims", func(c *framework.Preemption) int64 { return int64(len(c.Victims)) }},
	{"its most important victim has run for a shorter time", func(c *framework.Preemption) int64 { return -earliest(c.Victims).Unix() }},
}

// hurt is what a candidate costs, by criterion.
type hurt [len(criteria)]int64

func hurtOf(c *framework.Preemption) (h hurt) {
	for i := range criteria {
		h[i] = criteria[i].of(c)
	}
	return h
}

// compare orders candidates, and says which criterion decided; empty: none did.
func (h *hurt) compare(o *hurt) (int, string) {
	for i := range h {
		if c := cmp.Compare(h[i], o[i]); c != 0 {
			return c, criteria[i].why
		}
	}
	return 0, ""
}

// Best returns the candidate that hurts least, with the next best and what decided between the two: fewest violated budgets, then the lowest
// priority among the most important victims, the lowest sum of priorities, the fewest victims, and the most important victim that has run for
// the shortest time.
func Best(cs []*framework.Preemption) *framework.Preemption {
	hurts := make([]hurt, len(cs))
	for i, c := range cs {
		hurts[i] = hurtOf(c)
	}
	return best(cs, hurts)
}

// best is Best, from what each of cs costs.
func best(cs []*framework.Preemption, hurts []hurt) *framework.Preemption {
	best, second := 0, -1
	for i := 1; i < len(cs); i++ {
		if less, _ := hurts[i].compare(&hurts[best]); less < 0 {
			best, second = i, best
		} else if second < 0 {
			second = i
		} else if less, _ := hurts[i].compare(&hurts[second]); less < 0 {
			second = i
		}
	}
	c := *cs[best]
	c.Candidates, c.Why = len(cs), "there was no other node"
	if second >= 0 {
		c.RunnerUp = cs[second].Node
		_, why := hurts[best].compare(&hurts[second])
		c.Why = cmp.Or(why, "it was found first among equals")
	}
	return &c
}

// sum adds priorities up, moved so that none is negative: more victims never make a smaller sum.
func sum(pods []*state.PodInfo) int64 {
	var n int64
	for _, p := range pods {
		n += int64(p.Priority) + 1<<31
	}
	return n
}

// earliest is when the first of the most important victims began to run.
func earliest(pods []*state.PodInfo) time.Time {
	first := farFuture
	for _, p := range pods {
		if p.Priority == pods[0].Priority && started(p).Before(first) {
			first = started(p)
		}
	}
	return first
}
