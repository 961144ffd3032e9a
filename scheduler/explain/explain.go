// SPDX-License-Identifier: Apache-2.0

// Package explain turns a scheduling attempt into a mark.Decision: what people read in
// "why" and "timeline". The scheduler calls it once per attempt; it decides nothing.
// For pods that found a node it must be cheap: texts are made for few nodes only.
package explain

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/lib/mark"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Bounds of a Decision. Clusters of up to Everything nodes are told in full.
const (
	Everything  = 100
	maxVerdicts = 16
	maxScores   = 5
	// maxExplained bounds how many refusals of a large cluster are measured to find the nearest.
	maxExplained = 256
)

// Decision tells what an attempt found.
func Decision(a *framework.Attempt, attempt int, wait time.Duration) *mark.Decision {
	d := &mark.Decision{
		Attempt: attempt, QueueWait: wait, Nodes: a.Looked, Fit: len(a.Feasible), Filter: a.FilterTook, Score: a.ScoreTook,
		PreFilter: a.PreFilterTook, PostFilter: a.PostFilterTook, PreScore: a.PreScoreTook,
	}
	small := len(a.Snapshot.Nodes) <= Everything
	if a.Chosen != nil {
		d.Chosen = a.Chosen.Name
		d.Scores, d.Rules = scores(a, small), rules(a)
		d.Tied = tied(a)
	} else {
		d.Nodes = len(a.Snapshot.Nodes)
		d.Message = a.Message()
	}
	if len(a.Refused)+a.Narrowed > 0 && a.Failed == nil {
		d.RejectedBy = a.Reasons()
		d.Rejected = verdicts(a, small)
	}
	if a.Failed != nil {
		return d
	}
	if a.Chosen == nil {
		d.Groups, d.Fixes, d.Preemption = groups(a), fixes(a, d.Rejected), Preemption(a.Preemption)
	}
	if a.All != nil {
		d.RejectedBy = map[string]int{}
		for _, r := range a.All.Reasons {
			d.RejectedBy[r] = len(a.Snapshot.Nodes)
		}
	}
	return d
}

// tied counts the nodes with the chosen one's total; 0: it was the only one.
func tied(a *framework.Attempt) int {
	if len(a.Best) < 2 {
		return 0
	}
	return len(a.Best)
}

type measured struct {
	mark.Verdict
	distance float64
	of       *framework.Refusal // that Verdict does not explain yet; nil: it does
}

// verdicts tells the refusals: all of a small cluster's by name, else the nearest; of a pod that found a node a handful.
func verdicts(a *framework.Attempt, small bool) []mark.Verdict {
	look, keep := len(a.Refused), len(a.Refused)
	if !small {
		look, keep = min(look, maxExplained), maxVerdicts
		if a.Chosen != nil {
			look = min(look, maxVerdicts)
		}
	}
	all := make([]measured, 0, look)
	for i := range a.Refused[:look] {
		r := &a.Refused[i]
		if m, ok := rank(a, r); ok && look > keep {
			all = append(all, m)
			continue
		}
		all = append(all, measure(a, r))
	}
	slices.SortStableFunc(all, func(x, y measured) int {
		if !small {
			if c := cmp.Compare(x.distance, y.distance); c != 0 {
				return c
			}
		}
		return cmp.Compare(x.Node, y.Node)
	})
	all = all[:min(len(all), keep)]
	for i := range all {
		if all[i].of != nil {
			all[i] = measure(a, all[i].of)
		}
	}
	markNearest(all)
	out := make([]mark.Verdict, len(all))
	for i := range all {
		out[i] = all[i].Verdict
	}
	return out
}

// markNearest marks the one node that misses least, and leaves hints to it alone.
func markNearest(all []measured) {
	best, at := math.Inf(1), -1
	for i := range all {
		if all[i].Hint != "" && all[i].distance < best {
			best, at = all[i].distance, i
		}
	}
	for i := range all {
		if all[i].Nearest = i == at; i != at {
			all[i].Hint = ""
		}
	}
}

// hopeless is the distance of nodes that nothing is known about.
const hopeless = 10

// rank is measure without the texts. ok: the plugin that refused the node can rank it.
func rank(a *framework.Attempt, r *framework.Refusal) (m measured, ok bool) {
	at := refusedBy(a, r)
	if at < 0 {
		return m, false
	}
	ranker, ok := a.Filters[at].Plugin.(framework.Ranker)
	if !ok {
		return m, false
	}
	m.Node, m.of = r.Node.Name, r
	var fixable bool
	if m.distance, fixable = ranker.Distance(a.Pod, r.Node, r.Status); fixable && a.Chosen == nil && refusedNext(a, at, r.Node) != "" {
		m.distance += hopeless
	}
	return m, true
}

// refusedBy is the place in a.Filters of the filter that refused a node; -1: no filter did.
func refusedBy(a *framework.Attempt, r *framework.Refusal) int {
	return slices.IndexFunc(a.Filters, func(f framework.NamedFilter) bool { return f.Plugin.Name() == r.Status.Plugin })
}

// measure explains the refusal of a node, and says how far the node is from fitting.
func measure(a *framework.Attempt, r *framework.Refusal) measured {
	m := measured{Verdict: mark.Verdict{Node: r.Node.Name, Plugin: r.Status.Plugin, Reason: strings.Join(r.Status.Reasons, ", ")}, distance: hopeless}
	at := refusedBy(a, r)
	if at < 0 {
		return m
	}
	m.Short, m.Hint, m.distance = explained(a, at, r.Node, r.Status)
	if a.Chosen != nil {
		m.Hint = "" // the pod has a node
	}
	if m.Hint != "" {
		if next := refusedNext(a, at, r.Node); next != "" {
			m.Hint += "; then: " + next
			m.distance += hopeless
		}
	}
	if m.Short == "" && a.Chosen == nil && a.Snapshot.AnyNominated() && framework.Check(a.Filters, r.Node) == nil {
		m.Short = "its room is kept for pods that others make way for"
	}
	return m
}

// explained asks the filter at a place of a.Filters about its refusal.
func explained(a *framework.Attempt, at int, n *state.NodeInfo, st *framework.Status) (short, hint string, distance float64) {
	if e, ok := a.Filters[at].Plugin.(framework.Explainer); ok {
		return e.Explain(a.Pod, n, st)
	}
	if e, ok := a.Filters[at].NodeFilter.(framework.Explainer); ok {
		return e.Explain(a.Pod, n, st)
	}
	return "", "", hopeless
}

// refusedNext is what another filter than the one at a place misses on a node; empty: nothing.
func refusedNext(a *framework.Attempt, at int, n *state.NodeInfo) string {
	for i := at + 1; i < len(a.Filters); i++ {
		st := a.Filters[i].Filter(n)
		if st == nil {
			continue
		}
		short, _, _ := explained(a, i, n, st)
		if strings.HasPrefix(short, "taint "+corev1.TaintNodeUnschedulable+":") {
			continue // it goes when the node is uncordoned
		}
		return cmp.Or(short, strings.Join(st.Reasons, ", "))
	}
	return ""
}

// scores tells the leading nodes' scores, best first.
func scores(a *framework.Attempt, small bool) []mark.NodeScore {
	if len(a.Totals) == 0 {
		return []mark.NodeScore{{Node: a.Chosen.Name}}
	}
	lead := leading(a, small)
	out := make([]mark.NodeScore, len(lead))
	shares := make([]mark.PluginScore, len(lead)*len(a.ScoredBy))
	for i, at := range lead {
		mine := shares[i*len(a.ScoredBy) : (i+1)*len(a.ScoredBy)]
		for p, w := range a.ScoredBy {
			mine[p] = mark.PluginScore{Plugin: w.Plugin.Name(), Raw: a.Raw[p][at], Score: a.Scores[p][at], Weight: w.Weight}
		}
		out[i] = mark.NodeScore{Node: a.Feasible[at].Name, Total: a.Totals[at], Plugins: mine}
	}
	giveRules(out, a, lead)
	return out
}

// rules lists those that plugins' scores are the sum of.
func rules(a *framework.Attempt) (out []mark.Rule) {
	for p, r := range a.Ruled {
		if r == nil {
			continue
		}
		by := a.ScoredBy[p]
		for _, rule := range r.Rules() {
			out = append(out, mark.Rule{
				Plugin: by.Plugin.Name(), Policy: rule.Policy, From: rule.From, Field: rule.Field, Expression: rule.Expression, Weight: rule.Weight * by.Weight,
			})
		}
	}
	return out
}

// giveRules adds to out, which is about the nodes at places of a.Feasible, what the rules gave them.
func giveRules(out []mark.NodeScore, a *framework.Attempt, places []int) {
	for _, r := range a.Ruled {
		if r == nil {
			continue
		}
		n := len(r.Rules())
		for i, at := range places {
			for rule := range n {
				raw, score, ok := r.Given(at, rule)
				out[i].Rules = append(out[i].Rules, mark.RuleScore{Raw: raw, Score: score, Failed: !ok})
			}
		}
	}
}

// leading returns the places of the best nodes, the chosen one first.
func leading(a *framework.Attempt, small bool) []int {
	if small {
		all := make([]int, len(a.Totals))
		for i := range all {
			all[i] = i
		}
		slices.SortFunc(all, func(x, y int) int {
			switch {
			case x == a.ChosenAt:
				return -1
			case y == a.ChosenAt:
				return 1
			}
			return cmp.Or(cmp.Compare(a.Totals[y], a.Totals[x]), cmp.Compare(a.Feasible[x].Name, a.Feasible[y].Name))
		})
		return all
	}
	lead := append(make([]int, 0, maxScores+1), a.ChosenAt)
	for _, i := range a.Best {
		if len(lead) == maxScores {
			return lead
		}
		if int(i) != a.ChosenAt {
			lead = append(lead, int(i))
		}
	}
	most := a.Totals[a.ChosenAt]
	for i, total := range a.Totals {
		if total == most || len(lead) == maxScores && total <= a.Totals[lead[maxScores-1]] {
			continue
		}
		at := len(lead)
		for a.Totals[lead[at-1]] < total { // the first has the most
			at--
		}
		lead = slices.Insert(lead, at, i)
		lead = lead[:min(len(lead), maxScores)]
	}
	return lead
}
