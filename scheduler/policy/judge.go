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
	nodes   int
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
	j := &Judge{pod: pod, nodes: len(s.Nodes), budget: newBudget()}
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
			b := boundFilter{filter: f, table: f.table(pod, j.nodes), refuse: f.refusal}
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

// Filters tells whether there is anything to ask in Filter, Scores in Score.
func (j *Judge) Filters() bool { return len(j.filters) > 0 }

// Scores tells whether nodes get points.
func (j *Judge) Scores() bool {
	for _, p := range j.about {
		if len(p.scores) > 0 {
			return true
		}
	}
	return false
}

// Filter asks the filters in their order.
func (j *Judge) Filter(n *state.NodeInfo) *framework.Status {
	for i := range j.filters {
		f := &j.filters[i]
		v := remembered(f.table, n, func() (value, bool) { return f.judge(&variables{j.pod, n}, j.budget) })
		switch v.refused {
		case nil:
		case f.refusal:
			return f.refuse
		default:
			return v.refused
		}
	}
	return nil
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

// Points are the sum of all scores of a node, each times its weight.
func (j *Judge) Points() func(n *state.NodeInfo) int64 {
	type boundScore struct {
		*score
		table *table
	}
	var scores []boundScore
	for _, p := range j.about {
		for _, s := range p.scores {
			scores = append(scores, boundScore{s, s.table(j.pod, j.nodes)})
		}
	}
	return func(n *state.NodeInfo) (sum int64) {
		for _, s := range scores {
			v := remembered(s.table, n, func() (value, bool) { return s.give(&variables{j.pod, n}, j.budget) })
			sum += v.points * s.weight
		}
		return sum
	}
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
