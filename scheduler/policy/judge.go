// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"

	celtypes "github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Judge are the policies that are about one pod, for one attempt.
type Judge struct {
	pod     podInfo
	in      *state.Snapshot
	about   []*Policy
	filters []boundFilter
	budget  *budget
}

type boundFilter struct {
	*filter
	table  *table
	refuse *framework.Status // with the message for this pod
}

// For returns those of the policies that are about a pod of a scheduler. The status refuses all nodes.
func For(policies []*Policy, scheduler string, pod *state.PodInfo, s *state.Snapshot) (*Judge, *framework.Status) {
	j := &Judge{pod: pod, in: s, budget: newBudget()}
	v := &variables{pod: pod}
	for _, p := range policies {
		ok, err := p.applies(scheduler, v, s.Namespaces[pod.Pod.Namespace], j.budget)
		switch {
		case err != nil && !p.ignore:
			return nil, framework.Refuse(Plugin, framework.Unresolvable, fmt.Sprintf("policy %s: match cannot be evaluated: %v", p.Name, err))
		case ok:
			j.about = append(j.about, p)
		}
	}
	for _, p := range j.about {
		for _, f := range p.filters {
			b := boundFilter{filter: f, table: f.table(pod, len(s.Nodes)), refuse: f.refusal}
			if e := f.explanation; e != nil && !e.reads.nodes {
				if text := e.text(v, j.budget); text != "" {
					b.refuse = f.rule.refuse(text)
				}
			}
			j.filters = append(j.filters, b)
		}
	}
	return j, nil
}

// Filters tells whether there is anything to ask in Filter.
func (j *Judge) Filters() bool { return len(j.filters) > 0 }

// Filter asks the filters in their order.
func (j *Judge) Filter(n *state.NodeInfo) *framework.Status {
	for i := range j.filters {
		f := &j.filters[i]
		v := remembered(f.table, n, func() (value, bool) { return f.judge(&variables{j.pod, n}, j.budget) })
		if st := f.told(v); st != nil {
			return st
		}
	}
	return nil
}

// told is a verdict in the words for this pod.
func (f *boundFilter) told(v value) *framework.Status {
	if v.refused != nil && v.refused == f.refusal {
		return f.refuse
	}
	return v.refused
}

// NodeFilter is the judge of nodes. Where all that the filters find out is remembered it judges all nodes at once (framework.AllFilter).
func (j *Judge) NodeFilter() framework.NodeFilter {
	if slices.ContainsFunc(j.filters, func(f boundFilter) bool { return f.table == nil }) {
		return j
	}
	return judgeOfAll{j}
}

type judgeOfAll struct{ *Judge }

// FilterAll is Filter for all nodes.
func (j judgeOfAll) FilterAll(out []*framework.Status) {
	for i := range j.filters {
		f := &j.filters[i]
		f.table.each(j.in, func(place int) bool { return out[place] == nil }, func(n *state.NodeInfo) (value, bool) {
			return f.judge(&variables{j.pod, n}, j.budget)
		}, func(place int, v value) { out[place] = f.told(v) })
	}
}

// Explain names the filter that refuses the node, and tells what it says of this node.
func (j *Judge) Explain(pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status) (short, hint string, distance float64) {
	v, b := &variables{pod, n}, newBudget()
	for _, f := range j.filters {
		out, err := f.eval(v, b)
		at := "policy " + f.policy.Name + ", " + f.at + ": "
		switch {
		case err != nil && f.policy.ignore, err == nil && out == celtypes.True:
		case err != nil:
			return at + err.Error(), "", 1
		case f.explanation != nil:
			if text := f.explanation.text(v, b); text != "" {
				return at + text, "", 1
			}
			return at + f.message, "", 1
		default:
			return at + clip(oneLine(f.source), maxMessage), "", 1
		}
	}
	return "", "", 1
}

// text is the value of an expression that makes a message; empty: it has none.
func (e *expression) text(v *variables, b *budget) string {
	out, err := e.eval(v, b)
	if s, ok := out.(celtypes.String); ok && err == nil {
		return clip(oneLine(string(s)), maxMessage)
	}
	return ""
}

// NodeScorer gives nodes the sum of all scores, each times its weight; nil: there are none. Where all of that is remembered it scores many nodes at
// once (framework.AllScorer).
func (j *Judge) NodeScorer() framework.NodeScorer {
	r := &ranking{judge: j}
	all := true
	for _, p := range j.about {
		for _, s := range p.scores {
			t := s.table(j.pod, len(j.in.Nodes))
			all = all && t != nil
			r.scores = append(r.scores, boundScore{s, t})
		}
	}
	switch {
	case len(r.scores) == 0:
		return nil
	case all:
		return &rankingOfAll{ranking: r}
	}
	return r
}

type boundScore struct {
	*score
	table *table
}

type ranking struct {
	judge  *Judge
	scores []boundScore
	given  []float64 // what each score gave the nodes that Score was asked about, one node after another
}

func (r *ranking) give(s *boundScore, n *state.NodeInfo) (value, bool) {
	return s.give(&variables{r.judge.pod, n}, r.judge.budget)
}

// Score is the sum.
func (r *ranking) Score(n *state.NodeInfo) (sum int64) {
	for i := range r.scores {
		s := &r.scores[i]
		v := remembered(s.table, n, func() (value, bool) { return r.give(s, n) })
		r.given = append(r.given, v.raw)
		sum += v.points() * s.weight
	}
	return sum
}

// Normalize leaves the sums as they are: each rule gives 0 to MaxScore times its own weight, as if it were a plugin.
func (*ranking) Normalize([]int64) {}

// Absolute: see framework.Absolute.
func (*ranking) Absolute() {}

// Rules are the scores.
func (r *ranking) Rules() []framework.Rule {
	out := make([]framework.Rule, len(r.scores))
	for i, s := range r.scores {
		out[i] = framework.Rule{Policy: s.policy.Name, From: s.policy.From, Field: s.at, Expression: s.shown, Weight: s.weight}
	}
	return out
}

// Given is what a score gave the node that was scored as the at-th.
func (r *ranking) Given(at, rule int) (raw float64, score int64, ok bool) {
	return value{raw: r.given[at*len(r.scores)+rule]}.told()
}

// rankingOfAll keeps where the nodes are that it scored; what they were given is in the rows of the scores' tables.
type rankingOfAll struct {
	*ranking
	places []int32
}

// ScoreAll is Score for the nodes at places.
func (r *rankingOfAll) ScoreAll(places []int32, scores []int64) {
	r.places = places
	at := make([]int32, len(r.judge.in.Nodes)) // in scores, and 1
	for i, place := range places {
		at[place], scores[i] = int32(i+1), 0 //nolint:gosec // there are fewer nodes
	}
	for i := range r.scores {
		s := &r.scores[i]
		s.table.each(r.judge.in, func(place int) bool { return at[place] != 0 }, func(n *state.NodeInfo) (value, bool) { return r.give(s, n) },
			func(place int, v value) { scores[at[place]-1] += v.points() * s.weight })
	}
}

// Given is what a score gave the node that was scored as the at-th. What is in no row was not found out, since the policies cost too much.
func (r *rankingOfAll) Given(at, rule int) (raw float64, score int64, ok bool) {
	if r.places == nil { // Score was asked
		return r.ranking.Given(at, rule)
	}
	v, ok := r.scores[rule].table.row(r.judge.in, int(r.places[at]))
	if !ok {
		return 0, 0, false
	}
	return v.told()
}

// Wakes are the kinds of events after which a pod that policies refused may fit, so far as it depends on nodes and pods.
func Wakes(policies []*Policy, scheduler string, pod *state.PodInfo, namespace labels.Set, known bool) framework.Kinds {
	var k framework.Kinds
	for _, p := range policies {
		if len(p.filters) == 0 || !p.selects(scheduler, pod, namespace, known) {
			continue
		}
		for _, f := range p.filters {
			k |= f.reads.node | framework.NodeAdd
		}
	}
	return k
}

// Admits reports whether the filters that read no more of a node than its stamp covers let a pod onto it. Those that read more may.
func Admits(policies []*Policy, scheduler string, pod *state.PodInfo, namespace labels.Set, known bool, n *state.NodeInfo) bool {
	v, b := &variables{pod, n}, newBudget()
	for _, p := range policies {
		if len(p.filters) == 0 || !p.selects(scheduler, pod, namespace, known) {
			continue
		}
		if p.match != nil {
			if out, err := p.match.eval(&variables{pod: pod}, b); err == nil && out != celtypes.True {
				continue
			}
		}
		for _, f := range p.filters {
			if !f.reads.stable() {
				continue
			}
			out, err := f.eval(v, b)
			if errors.Is(err, errSpent) || err != nil && p.ignore {
				continue
			}
			if err != nil || out != celtypes.True {
				return false
			}
		}
	}
	return true
}

// Concerns reports whether a pod that was refused may be let in when p changes or goes: p has filters, and may be about it.
func (p *Policy) Concerns(scheduler string, pod *state.PodInfo, namespace labels.Set, known bool) bool {
	return p != nil && (len(p.filters) > 0 || p.match != nil) && p.selects(scheduler, pod, namespace, known)
}

// SelectNamespaces reports whether the labels of namespaces decide about a filter.
func SelectNamespaces(policies []*Policy) bool {
	return slices.ContainsFunc(policies, func(p *Policy) bool { return p.namespaces != nil && len(p.filters) > 0 })
}
