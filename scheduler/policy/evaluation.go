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

// Evaluation has the policies that apply to one pod, for one attempt. It is the pod's node filter.
type Evaluation struct {
	pod      podInfo
	snapshot *state.Snapshot
	policies []*Policy
	filters  []boundFilter
	budget   *budget
}

type boundFilter struct {
	*filter
	cache      *valueCache
	podRefusal *framework.Status // the status with the message for this pod
}

// NewEvaluation selects the policies that apply to a pod. A status refuses the pod on all nodes.
func NewEvaluation(
	policies []*Policy, scheduler string, pod *state.PodInfo, snapshot *state.Snapshot,
) (*Evaluation, *framework.Status) {
	evaluation := &Evaluation{pod: pod, snapshot: snapshot, budget: newBudget()}
	v := &variables{pod: pod}
	for _, p := range policies {
		ok, err := p.appliesTo(scheduler, v, snapshot.Namespaces[pod.Pod.Namespace], evaluation.budget)
		switch {
		case err != nil && !p.ignore:
			return nil, framework.NewStatus(Plugin, framework.Unresolvable,
				fmt.Sprintf("policy %s: match cannot be evaluated: %v", p.Name, err))
		case ok:
			evaluation.policies = append(evaluation.policies, p)
		}
	}
	for _, p := range evaluation.policies {
		for _, f := range p.filters {
			b := boundFilter{filter: f, cache: f.cacheFor(pod, len(snapshot.Nodes)), podRefusal: f.refusal}
			if e := f.explanation; e != nil && !e.reads.nodes {
				if text := e.text(v, evaluation.budget); text != "" {
					b.podRefusal = f.refuse(text)
				}
			}
			evaluation.filters = append(evaluation.filters, b)
		}
	}
	return evaluation, nil
}

// HasFilters reports whether a policy with filters applies.
func (j *Evaluation) HasFilters() bool { return len(j.filters) > 0 }

// Filter runs the filters in their order.
func (j *Evaluation) Filter(n *state.NodeInfo) *framework.Status {
	for i := range j.filters {
		f := &j.filters[i]
		v := cachedValue(f.cache, n, func() (value, bool) { return f.evaluate(&variables{j.pod, n}, j.budget) })
		if st := f.statusOf(v); st != nil {
			return st
		}
	}
	return nil
}

// statusOf returns the status of a value, with the message for this pod.
func (f *boundFilter) statusOf(v value) *framework.Status {
	if v.refused != nil && v.refused == f.refusal {
		return f.podRefusal
	}
	return v.refused
}

// NodeFilter returns the filter. It filters all nodes in one call if all filters have a cache.
func (j *Evaluation) NodeFilter() framework.NodeFilter {
	f := framework.NodeFilter{Filter: j.Filter, Explain: j.Explain}
	if !slices.ContainsFunc(j.filters, func(f boundFilter) bool { return f.cache == nil }) {
		f.FilterAll = j.FilterAll
	}
	return f
}

// FilterAll is Filter for all nodes.
func (j *Evaluation) FilterAll(out []*framework.Status) {
	for i := range j.filters {
		f := &j.filters[i]
		f.cache.forEach(j.snapshot, func(place int) bool { return out[place] == nil }, func(
			n *state.NodeInfo,
		) (value, bool) {
			return f.evaluate(&variables{j.pod, n}, j.budget)
		}, func(place int, v value) { out[place] = f.statusOf(v) })
	}
}

// Explain names the filter that refuses the node, and its message for this node.
func (j *Evaluation) Explain(
	pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status,
) (short, hint string, distance float64) {
	v := &variables{pod, n}
	b := newBudget()
	for _, boundFilter := range j.filters {
		out, err := boundFilter.eval(v, b)
		at := "policy " + boundFilter.policy.Name + ", " + boundFilter.field + ": "
		switch {
		case err != nil && boundFilter.policy.ignore, err == nil && out == celtypes.True:
		case err != nil:
			return at + err.Error(), "", 1
		case boundFilter.explanation != nil:
			if text := boundFilter.explanation.text(v, b); text != "" {
				return at + text, "", 1
			}
			return at + boundFilter.message, "", 1
		default:
			return at + clip(oneLine(boundFilter.source)), "", 1
		}
	}
	return "", "", 1
}

// text evaluates a messageExpression; empty: no string, or an error.
func (e *expression) text(v *variables, b *budget) string {
	out, err := e.eval(v, b)
	if s, ok := out.(celtypes.String); ok && err == nil {
		return clip(oneLine(string(s)))
	}
	return ""
}

// NodeScorer returns the scorer: the sum of all scores, each times its weight. It is zero if there are no scores. It
// scores all nodes in one call if all scores have a cache.
func (j *Evaluation) NodeScorer() framework.NodeScorer {
	r := &scorer{evaluation: j}
	all := true
	for _, p := range j.policies {
		for _, s := range p.scores {
			t := s.cacheFor(j.pod, len(j.snapshot.Nodes))
			all = all && t != nil
			r.scores = append(r.scores, boundScore{s, t})
		}
	}
	switch {
	case len(r.scores) == 0:
		return framework.NodeScorer{}
	case all:
		s := &allScorer{scorer: r}
		return framework.NodeScorer{Score: s.Score, ScoreAll: s.ScoreAll, Rules: s}
	}
	return framework.NodeScorer{Score: r.Score, Rules: r}
}

type boundScore struct {
	*score
	cache *valueCache
}

type scorer struct {
	evaluation *Evaluation
	scores     []boundScore
	values     []float64 // the values of all scores, one node after another in the order of Score
}

func (r *scorer) evaluate(s *boundScore, n *state.NodeInfo) (value, bool) {
	return s.evaluate(&variables{r.evaluation.pod, n}, r.evaluation.budget)
}

// Score is the sum.
func (r *scorer) Score(n *state.NodeInfo) (sum int64) {
	for i := range r.scores {
		s := &r.scores[i]
		v := cachedValue(s.cache, n, func() (value, bool) { return r.evaluate(s, n) })
		r.values = append(r.values, v.raw)
		sum += v.points() * s.weight
	}
	return sum
}

// Rules returns the score rules, for the decision that users read.
func (r *scorer) Rules() []framework.Rule {
	out := make([]framework.Rule, len(r.scores))
	for i, s := range r.scores {
		out[i] = framework.Rule{
			Policy:     s.policy.Name,
			From:       s.policy.From,
			Field:      s.field,
			Expression: s.shown,
			Weight:     s.weight,
		}
	}
	return out
}

// RuleResult returns the value of a rule for the node that was scored as the at-th; false: it has none.
func (r *scorer) RuleResult(at, rule int) (raw float64, score int64, ok bool) {
	return value{raw: r.values[at*len(r.scores)+rule]}.reported()
}

// allScorer remembers the places of the nodes that it scored. Their values are in the caches of the scores.
type allScorer struct {
	*scorer
	places []int32
}

// ScoreAll is Score for the nodes at places.
func (r *allScorer) ScoreAll(places []int32, scores []int64) {
	r.places = places
	at := make([]int32, len(r.evaluation.snapshot.Nodes)) // index in scores plus 1
	for i, place := range places {
		at[place] = int32(i + 1)
		scores[i] = 0 // there are fewer nodes
	}
	for i := range r.scores {
		s := &r.scores[i]
		s.cache.forEach(r.evaluation.snapshot, func(place int) bool { return at[place] != 0 },
			func(n *state.NodeInfo) (value, bool) { return r.evaluate(s, n) },
			func(place int, v value) { scores[at[place]-1] += v.points() * s.weight })
	}
}

// RuleResult returns the value of a rule for the node that was scored as the at-th. A value that is in no cache was not
// evaluated, since the budget was spent.
func (r *allScorer) RuleResult(at, rule int) (raw float64, score int64, ok bool) {
	if r.places == nil { // Score was called instead of ScoreAll
		return r.scorer.RuleResult(at, rule)
	}
	v, ok := r.scores[rule].cache.valueAt(r.evaluation.snapshot, int(r.places[at]))
	if !ok {
		return 0, 0, false
	}
	return v.reported()
}

// EventKinds returns the kinds of node and pod events after which a pod that policies refused may fit.
func EventKinds(
	policies []*Policy, scheduler string, pod *state.PodInfo, namespace labels.Set, known bool,
) framework.EventKinds {
	var k framework.EventKinds
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

// Admits reports whether the filters accept a node, as a QueueingHint. It skips filters that read more than
// NodeInfo.Stamp covers.
func Admits(
	policies []*Policy, scheduler string, pod *state.PodInfo, namespace labels.Set, known bool, n *state.NodeInfo,
) bool {
	v := &variables{pod, n}
	budget := newBudget()
	for _, policy := range policies {
		if len(policy.filters) == 0 || !policy.selects(scheduler, pod, namespace, known) {
			continue
		}
		if policy.match != nil {
			if out, err := policy.match.eval(&variables{pod: pod}, budget); err == nil && out != celtypes.True {
				continue
			}
		}
		for _, f := range policy.filters {
			if !f.reads.stable() {
				continue
			}
			out, err := f.eval(v, budget)
			if errors.Is(err, errBudget) || err != nil && policy.ignore {
				continue
			}
			if err != nil || out != celtypes.True {
				return false
			}
		}
	}
	return true
}

// MayApply reports whether a change or deletion of p may help a pod that was refused.
func (p *Policy) MayApply(scheduler string, pod *state.PodInfo, namespace labels.Set, known bool) bool {
	return p != nil && (len(p.filters) > 0 || p.match != nil) && p.selects(scheduler, pod, namespace, known)
}

// SelectNamespaces reports whether a policy with filters has a namespaceSelector.
func SelectNamespaces(policies []*Policy) bool {
	return slices.ContainsFunc(policies, func(p *Policy) bool { return p.namespaces != nil && len(p.filters) > 0 })
}
