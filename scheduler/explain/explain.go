// SPDX-License-Identifier: Apache-2.0

// Package explain converts a scheduling attempt to a decisions.Attempt, which users read in
// `keelson why`, `keelson timeline` and PodDecisions. The scheduler calls it once per attempt. It never
// changes the result of an attempt. It must be cheap for pods that found a node, so it
// formats texts for few nodes only.
package explain

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/decisions"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/state"
)

// Limits of a Decision. With up to SmallCluster nodes, it has all nodes.
const (
	SmallCluster = 100
	maxVerdicts  = 16
	maxScores    = 5
	maxFacts     = 3 // nodes whose scores are explained
	mostPoints   = 5
	// maxExplained bounds the refusals of a large cluster that are explained to find the nearest node.
	maxExplained = framework.ExplainedRefusals
)

// Decision returns the decision of an attempt.
func Decision(a *framework.Attempt, attempt int, wait time.Duration) *decisions.Attempt {
	decision := New(attempt, wait)
	decision.Nodes = int32(a.EvaluatedNodes)
	decision.Feasible = int32(len(a.Feasible))
	decision.ExtensionPoints = make([]decisions.ExtensionPoint, 0, mostPoints)
	decision.AddPoint(decisions.PreFilter, a.Took.PreFilter)
	decision.AddPoint(decisions.Filter, a.Took.Filter-a.Took.PreFilter)
	decision.AddPoint(decisions.PostFilter, a.Took.PostFilter)
	decision.AddPoint(decisions.PreScore, a.Took.PreScore)
	decision.AddPoint(decisions.Score, a.Took.Score-a.Took.PreScore)
	small := len(a.Snapshot.Nodes) <= SmallCluster
	if a.Chosen != nil {
		decision.Node = a.Chosen.Name
		decision.Scores = scores(a, small)
		decision.Rules = rules(a)
		decision.Tied = int32(tied(a))
	} else {
		decision.Nodes = int32(len(a.Snapshot.Nodes))
		decision.Message = a.Message()
	}
	if a.Failed != nil {
		return decision
	}
	if len(a.Refused)+a.Excluded > 0 {
		decision.Reasons = a.Reasons()
		if a.Chosen != nil {
			decision.Refusals = verdicts(a, small)
		}
	}
	if a.Chosen == nil {
		x := explainRefusals(a, small)
		decision.Refusals = x.Refusals
		decision.RefusedBy = x.Groups
		decision.Fixes = x.Fixes
		decision.Preemption = Preemption(a.Preemption)
	}
	if a.PreFilterStatus != nil {
		decision.Reasons = map[string]int{}
		for _, r := range a.PreFilterStatus.Reasons {
			decision.Reasons[r] = len(a.Snapshot.Nodes)
		}
	}
	return decision
}

// New returns the decision of an attempt that has looked at no node.
func New(attempt int, wait time.Duration) *decisions.Attempt {
	decision := &decisions.Attempt{}
	decision.Attempt = int32(attempt)
	decision.Queued.Duration = wait
	return decision
}

// explainRefusals returns what there is to say about the refused nodes. Attempts of pods alike share it, except while
// nodes are drained: that is no property of the nodes.
func explainRefusals(attempt *framework.Attempt, small bool) *framework.Explained {
	version := attempt.Snapshot.Version()
	shared := attempt.Refusals
	if attempt.DrainedNodes != nil {
		shared = nil
	}
	explained := &framework.Explained{Version: version}
	switch {
	case shared == nil || shared.Explained == nil:
		explained.Refusals = verdicts(attempt, small)
		explained.Groups = groups(attempt)
		explained.Leaves = leaves(attempt)
		explained.Hints = hints(attempt, explained.Refusals)
	case shared.Explained.Version == version:
		return shared.Explained
	default:
		*explained = *shared.Explained
		explained.Leaves = leaves(attempt)
		explained.Version = version
	}
	explained.Fixes = fixes(explained)
	if shared != nil {
		shared.Explained = explained
	}
	return explained
}

// tied counts the nodes with the same total as the chosen one; 0: it is the only one.
func tied(a *framework.Attempt) int {
	if len(a.Best) < 2 {
		return 0
	}
	return len(a.Best)
}

// verdictWithDistance is a refusal with the distance of the node from fitting (framework.NodeFilter.Explain).
type verdictWithDistance struct {
	decisions.Refusal
	distance float64
	of       *framework.Refusal // that Refusal does not explain yet; nil: it does
}

// verdicts returns the refusals: in a small cluster all by node name, else the nearest nodes, and only a few if the pod
// found a node.
func verdicts(attempt *framework.Attempt, small bool) []decisions.Refusal {
	look := len(attempt.Refused)
	keep := len(attempt.Refused)
	if !small {
		look = min(look, maxExplained)
		keep = maxVerdicts
		if attempt.Chosen != nil {
			look = min(look, maxVerdicts)
		}
	}
	all := make([]verdictWithDistance, 0, look)
	for i := range attempt.Refused[:look] {
		r := &attempt.Refused[i]
		if m, ok := distanceOf(attempt, r); ok && look > keep {
			all = append(all, m)
			continue
		}
		all = append(all, explainRefusal(attempt, r))
	}
	slices.SortStableFunc(all, func(x, y verdictWithDistance) int {
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
			all[i] = explainRefusal(attempt, all[i].of)
		}
	}
	markNearest(all)
	out := make([]decisions.Refusal, len(all))
	for i := range all {
		out[i] = all[i].Refusal
	}
	return out
}

// markNearest marks the nearest node with a hint, and removes the hints of the other nodes.
func markNearest(all []verdictWithDistance) {
	best := math.Inf(1)
	at := -1
	for i := range all {
		if all[i].Hint != "" && all[i].distance < best {
			best = all[i].distance
			at = i
		}
	}
	for i := range all {
		if all[i].Nearest = i == at; i != at {
			all[i].Hint = ""
		}
	}
}

// farDistance is the distance of nodes without an explanation.
const farDistance = 10

// distanceOf is measure without the texts. ok: the plugin that refused the node can rank it.
func distanceOf(attempt *framework.Attempt, refusal *framework.Refusal) (distance verdictWithDistance, ok bool) {
	at := refusedBy(attempt, refusal)
	if at < 0 {
		return distance, false
	}
	of := &attempt.Filters[at]
	if of.Distance == nil {
		return distance, false
	}
	distance.Node = refusal.Node.Name
	distance.of = refusal
	var fixable bool
	if distance.distance, fixable = of.Distance(attempt.Pod, refusal.Node, refusal.Status); fixable &&
		attempt.Chosen == nil {
		_, more, _ := laterSteps(attempt, at, refusal.Node)
		distance.distance += more
	}
	return distance, true
}

// refusedBy is the place in a.Filters of the filter that refused a node; -1: no filter did.
func refusedBy(a *framework.Attempt, r *framework.Refusal) int {
	return slices.IndexFunc(a.Filters, func(f framework.NamedFilter) bool { return f.Plugin == r.Status.Plugin })
}

// explainRefusal explains the refusal of a node, and says how far the node is from fitting.
func explainRefusal(attempt *framework.Attempt, refusal *framework.Refusal) verdictWithDistance {
	distance := verdictWithDistance{
		Refusal: decisions.Refusal{
			Node:   refusal.Node.Name,
			Plugin: refusal.Status.Plugin,
			Reason: strings.Join(refusal.Status.Reasons, ", "),
		},
		distance: farDistance,
	}
	at := refusedBy(attempt, refusal)
	if at < 0 {
		return distance
	}
	distance.Shortage, distance.Hint, distance.distance = callExplainer(attempt, at, refusal.Node, refusal.Status)
	if refusal.Status.Plugin == "TaintToleration" {
		distance.Taint = plugins.Untolerated(attempt.Pod, refusal.Node)
	}
	if attempt.Chosen != nil || attempt.DrainedNodes[refusal.Node.Name] {
		distance.Hint = "" // the pod has a node, or must not get this one
	}
	if distance.Hint != "" {
		steps, more, ok := laterSteps(attempt, at, refusal.Node)
		if distance.Hint += steps; !ok {
			distance.Hint = ""
		}
		distance.distance += more
	}
	if distance.Shortage == "" && attempt.Chosen == nil && attempt.Snapshot.AnyNominated() &&
		framework.Check(attempt.Filters, refusal.Node) == nil {
		distance.Shortage = "its room is kept for pods that others make way for"
	}
	return distance
}

// callExplainer calls Explain of the filter a.Filters[at].
func callExplainer(
	a *framework.Attempt, at int, n *state.NodeInfo, st *framework.Status,
) (short, hint string, distance float64) {
	if explain := a.Filters[at].Explain; explain != nil {
		return explain(a.Pod, n, st)
	}
	return "", "", farDistance
}

// laterSteps returns the hints of the filters after attempt.Filters[at] that refuse the node, and how much farther they
// make it. ok: with all these hints the pod fits.
func laterSteps(attempt *framework.Attempt, at int, info *state.NodeInfo) (steps string, distance float64, ok bool) {
	changed := []string{attempt.Filters[at].Plugin}
	for i := at + 1; i < len(attempt.Filters); i++ {
		countsMore := attempt.Filters[i].CountsMore
		if countsMore != nil && slices.ContainsFunc(changed, decidesWhatCounts) &&
			countsMore(info, slices.Contains(changed, "TaintToleration")) {
			return "", farDistance, false
		}
		st := attempt.Filters[i].Filter(info)
		if st == nil {
			continue
		}
		changed = append(changed, attempt.Filters[i].Plugin)
		short, hint, more := callExplainer(attempt, i, info, st)
		if strings.HasPrefix(short, "taint "+corev1.TaintNodeUnschedulable+":") {
			continue // it goes when the node is uncordoned
		}
		if hint == "" {
			return "", farDistance, false
		}
		steps += step + hint
		distance += more
	}
	return steps, distance, true
}

// decidesWhatCounts reports whether nodes that a plugin refuses may not count for topology spread (nodeAffinityPolicy,
// nodeTaintsPolicy).
func decidesWhatCounts(plugin string) bool {
	return plugin == "NodeUnschedulable" || plugin == "NodeAffinity" || plugin == "TaintToleration"
}

// scores returns the scores of the leading nodes, best first.
func scores(attempt *framework.Attempt, small bool) []decisions.NodeScore {
	if len(attempt.Totals) == 0 {
		return []decisions.NodeScore{{Node: attempt.Chosen.Name}}
	}
	lead := leadingPlaces(attempt, small)
	out := make([]decisions.NodeScore, len(lead))
	shares := make([]decisions.PluginScore, len(lead)*len(attempt.ScoredBy))
	for i, at := range lead {
		mine := shares[i*len(attempt.ScoredBy) : (i+1)*len(attempt.ScoredBy)]
		for p, w := range attempt.ScoredBy {
			score := decisions.NewPluginScore(w.Name, attempt.Raw[p][at], attempt.Scores[p][at], w.Weight)
			if i < maxFacts && w.ScoreFacts != nil {
				score = score.From(w.ScoreFacts(attempt.Pod, attempt.Snapshot, attempt.Feasible[at]))
			}
			mine[p] = score
		}
		out[i] = decisions.NodeScore{Node: attempt.Feasible[at].Name, Total: attempt.Totals[at], Plugins: mine}
	}
	addRuleScores(out, attempt, lead)
	return out
}

// rules returns the rules of plugins whose score is a sum of rules (CELPolicy).
func rules(a *framework.Attempt) (out []decisions.Rule) {
	for p, r := range a.RuleScorers {
		if r == nil {
			continue
		}
		by := a.ScoredBy[p]
		for _, rule := range r.Rules() {
			out = append(out, decisions.Rule{
				Plugin:     by.Name,
				Policy:     rule.Policy,
				From:       rule.From,
				Field:      rule.Field,
				Expression: rule.Expression,
				Weight:     rule.Weight * by.Weight,
			})
		}
	}
	return out
}

// addRuleScores adds the scores of the rules to out, which has the nodes at places of a.Feasible.
func addRuleScores(out []decisions.NodeScore, a *framework.Attempt, places []int) {
	for p, r := range a.RuleScorers {
		if r == nil {
			continue
		}
		rules := r.Rules()
		for i, at := range places {
			for place := range rules {
				raw, score, ok := r.RuleResult(at, place)
				out[i].Rules = append(out[i].Rules, decisions.RuleScore{
					Raw:        raw,
					Normalized: score,
					Weighted:   score * rules[place].Weight * a.ScoredBy[p].Weight,
					Failed:     !ok,
				})
			}
		}
	}
}

// leadingPlaces returns the places of the best nodes in attempt.Feasible, the chosen one first.
func leadingPlaces(attempt *framework.Attempt, small bool) []int {
	if small {
		all := make([]int, len(attempt.Totals))
		for i := range all {
			all[i] = i
		}
		slices.SortFunc(all, func(x, y int) int {
			switch {
			case x == attempt.ChosenAt:
				return -1
			case y == attempt.ChosenAt:
				return 1
			}
			return cmp.Or(cmp.Compare(attempt.Totals[y], attempt.Totals[x]),
				cmp.Compare(attempt.Feasible[x].Name, attempt.Feasible[y].Name))
		})
		return all
	}
	lead := append(make([]int, 0, maxScores+1), attempt.ChosenAt)
	for _, i := range attempt.Best {
		if len(lead) == maxScores {
			return lead
		}
		if int(i) != attempt.ChosenAt {
			lead = append(lead, int(i))
		}
	}
	most := attempt.Totals[attempt.ChosenAt]
	for i, total := range attempt.Totals {
		if total == most || len(lead) == maxScores && total <= attempt.Totals[lead[maxScores-1]] {
			continue
		}
		at := len(lead)
		for attempt.Totals[lead[at-1]] < total { // the first has the most
			at--
		}
		lead = slices.Insert(lead, at, i)
		lead = lead[:min(len(lead), maxScores)]
	}
	return lead
}
