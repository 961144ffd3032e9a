// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"cmp"
	"container/list"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/event"
)

// DefaultDecisionBytes is the default memory limit for complete decisions.
const DefaultDecisionBytes = 16 << 20

// decided is the last scheduling attempt of a pod with the result of its binding.
type decided struct {
	uid   string
	at    time.Time
	took  time.Duration
	about *event.Decision
	bound *event.Bind // nil: not yet bound
	bind  time.Duration
	err   string // of the binding
	bytes int
}

// decisionLog stores the complete decision of the last attempt of each pod. Old ones are dropped when the total exceeds
// limit bytes. Stories keep a short form of every attempt.
type decisionLog struct {
	limit, bytes int
	pods         map[string]*list.Element // by UID, of *decided
	order        *list.List               // the most recently tried pod first
}

func newDecisionLog(limit int) decisionLog {
	return decisionLog{limit: limit, pods: map[string]*list.Element{}, order: list.New()}
}

func (l *decisionLog) of(uid string) *decided {
	e, ok := l.pods[uid]
	if !ok {
		return nil
	}
	d, _ := e.Value.(*decided)
	return d
}

// set stores an attempt in place of earlier ones of the pod.
func (l *decisionLog) set(m *event.Event, about *event.Decision) {
	uid := m.Subject.UID
	if e, ok := l.pods[uid]; ok {
		l.drop(e)
	}
	d := &decided{
		uid:   uid,
		at:    m.At,
		took:  m.Took,
		about: about,
		bytes: sizeOf(about) + len(uid),
	}
	l.pods[uid] = l.order.PushFront(d)
	l.bytes += d.bytes
	for l.bytes > l.limit {
		l.drop(l.order.Back())
	}
}

func (l *decisionLog) drop(e *list.Element) {
	if d, ok := l.order.Remove(e).(*decided); ok {
		l.bytes -= d.bytes
		delete(l.pods, d.uid)
	}
}

// bound records the result of a binding.
func (l *decisionLog) bound(m *event.Event, b *event.Bind) {
	if d := l.of(m.Subject.UID); d != nil && d.about.Chosen == b.Node {
		c := *d // a copy: readers may hold the old value
		c.bound = b
		c.bind = m.Took
		c.err = m.Err
		l.pods[c.uid].Value = &c
	}
}

// Approximate memory of the parts of a decision, with the overhead of allocator and maps.
const (
	sizeDecided = 512
	sizeVerdict = 96
	sizeScore   = 56
	sizeShare   = 48
	sizeRule    = 96
	sizeGiven   = 24
	sizeGroup   = 80
	sizeText    = 16
)

// sizeOf estimates a decision's memory in bytes. Names of nodes and plugins may be shared strings but are counted:
// marks from other processes have their own copies.
func sizeOf(decision *event.Decision) int {
	n := sizeDecided + len(decision.Message) + len(decision.Waits) + len(decision.Chosen) + len(decision.PodGroup)
	for i := range decision.Rejected {
		v := &decision.Rejected[i]
		n += sizeVerdict + len(v.Node) + len(v.Plugin) + len(v.Reason) + len(v.Short) + len(v.Hint)
	}
	for reason := range decision.RejectedBy {
		n += len(reason) + 2*sizeText
	}
	for i := range decision.Scores {
		n += sizeScore + len(decision.Scores[i].Node) + len(decision.Scores[i].Plugins)*sizeShare +
			len(decision.Scores[i].Rules)*sizeGiven
	}
	for i := range decision.Rules {
		n += sizeRule + len(decision.Rules[i].Policy) + len(decision.Rules[i].Field) + len(decision.Rules[i].Expression)
	}
	for i := range decision.Groups {
		n += sizeGroup + len(decision.Groups[i].Reason) + len(decision.Groups[i].Plugin)
		for _, name := range decision.Groups[i].Names {
			n += sizeText + len(name)
		}
	}
	for _, fix := range decision.Fixes {
		n += sizeText + len(fix)
	}
	if p := decision.Preemption; p != nil {
		n += sizeVerdict + len(p.Why)
		for _, v := range p.Victims {
			n += sizeShare + len(v.Namespace) + len(v.Name)
		}
	}
	return n
}

// brief is the short form of an attempt in a story.
func brief(d *event.Decision) *event.Decision {
	const verdicts, scores = 3, 3
	if len(d.Rejected) <= verdicts && len(d.Scores) <= scores && len(d.Groups)+len(d.Rules) == 0 {
		return d
	}
	c := *d
	c.Rejected = slices.Clone(d.Rejected[:min(len(d.Rejected), verdicts)])
	c.Scores = slices.Clone(d.Scores[:min(len(d.Scores), scores)])
	for i := range c.Scores {
		c.Scores[i].Plugins = nil
		c.Scores[i].Rules = nil
	}
	c.Groups = nil
	c.Rules = nil
	return &c
}

// Decision returns what is stored of a pod's last attempt, nil if nothing. The caller may modify the result but not the
// elements of its slices.
func (t *Timeline) Decision(pod types.UID) *decisions.PodDecision {
	t.mu.Lock()
	decided := t.decided.of(string(pod))
	t.mu.Unlock()
	if decided == nil {
		return nil
	}
	decision := decided.about
	out := &decisions.PodDecision{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(decided.at)}}
	out.Status = decisions.PodDecisionStatus{
		Message:         message(decision),
		Attempt:         int32(decision.Attempt),
		Nodes:           int32(decision.Nodes),
		Feasible:        int32(decision.Fit),
		Tied:            int32(decision.Tied), // numbers of nodes
		Queued:          metav1.Duration{Duration: decision.QueueWait},
		Took:            metav1.Duration{Duration: decided.took},
		WaitsFor:        decision.Waits,
		Fixes:           decision.Fixes,
		ExtensionPoints: extensionPoints(decided),
		Scores:          nodeScores(decision),
		Rules:           rules(decision),
		Refusals:        refused(decision),
		RefusedBy:       refusedBy(decision),
		Preemption:      preempted(decision.Preemption),
	}
	s := &out.Status
	s.Result, s.Node, s.Reason = outcome(decided)
	if len(s.Scores) > 1 {
		s.RunnerUp = s.Scores[1].Node
	}
	return out
}

// message is the scheduler's message, with the state of the pod's group.
func message(a *event.Decision) string {
	switch {
	case a.PodGroup == "":
		return a.Message
	case a.Message == "":
		return "pod group " + a.PodGroup
	}
	return a.Message + "; pod group " + a.PodGroup
}

// outcome is an attempt's result, its node, and a short reason.
func outcome(d *decided) (result, node, reason string) {
	decision := d.about
	switch {
	case decision.Chosen != "" && d.err != "":
		return decisions.BindFailed, decision.Chosen, d.err
	case decision.Chosen != "" && decision.Fit == 1:
		return decisions.Scheduled, decision.Chosen, "the only node that fits"
	case decision.Chosen != "" && decision.Tied > 1:
		return decisions.Scheduled, decision.Chosen, fmt.Sprintf("one of %d with the highest score", decision.Tied)
	case decision.Chosen != "":
		return decisions.Scheduled, decision.Chosen, "the highest score"
	case decision.Preemption != nil:
		return decisions.Preempting, decision.Preemption.Node,
			fmt.Sprintf("%s must go", plural(decision.Preemption.Count, "pod"))
	}
	return decisions.Unschedulable, "", cmp.Or(counted(decision.RejectedBy), decision.Message)
}

func extensionPoints(d *decided) []decisions.ExtensionPoint {
	decision := d.about
	var out []decisions.ExtensionPoint
	add := func(name string, took time.Duration) {
		if took > 0 {
			out = append(out, decisions.ExtensionPoint{Name: name, Took: metav1.Duration{Duration: took}})
		}
	}
	add("PreFilter", decision.PreFilter)
	add("Filter", decision.Filter-decision.PreFilter)
	add("PostFilter", decision.PostFilter)
	add("PreScore", decision.PreScore)
	add("Score", decision.Score-decision.PreScore)
	if b := d.bound; b != nil {
		add("Reserve", b.Reserve)
		add("Permit", b.Permit)
		add("PreBind", b.PreBind)
		add("Bind", d.bind-b.PreBind)
	}
	return out
}

func nodeScores(decision *event.Decision) []decisions.NodeScore {
	var out []decisions.NodeScore
	for _, nodeScore := range decision.Scores {
		n := decisions.NodeScore{Node: nodeScore.Node, Total: nodeScore.Total}
		for _, p := range nodeScore.Plugins {
			n.Plugins = append(n.Plugins, decisions.PluginScore{
				Plugin:     p.Plugin,
				Raw:        p.Raw,
				Normalized: p.Score,
				Weight:     p.Weight,
				Weighted:   p.Score * p.Weight,
			})
		}
		for i, r := range nodeScore.Rules {
			if i < len(decision.Rules) {
				n.Rules = append(n.Rules, decisions.RuleScore{
					Raw:        r.Raw,
					Normalized: r.Score,
					Weighted:   r.Score * decision.Rules[i].Weight,
					Failed:     r.Failed,
				})
			}
		}
		out = append(out, n)
	}
	return out
}

func rules(a *event.Decision) []decisions.Rule {
	var out []decisions.Rule
	for _, r := range a.Rules {
		out = append(out, decisions.Rule(r))
	}
	return out
}

func refused(a *event.Decision) []decisions.Refusal {
	var out []decisions.Refusal
	for _, v := range a.Rejected {
		out = append(out, decisions.Refusal{
			Node:     v.Node,
			Plugin:   v.Plugin,
			Reason:   v.Reason,
			Shortage: v.Short,
		})
	}
	return out
}

func refusedBy(decision *event.Decision) []decisions.RefusalGroup {
	var out []decisions.RefusalGroup
	for _, g := range decision.Groups {
		out = append(out, decisions.RefusalGroup{
			Plugin: g.Plugin,
			Reason: g.Reason,
			Nodes:  int32(g.Nodes),
			Names:  g.Names,
		}) // a number of nodes
	}
	if len(out) == 0 {
		for reason, n := range decision.RejectedBy {
			out = append(out, decisions.RefusalGroup{Reason: reason, Nodes: int32(n)}) // a number of nodes
		}
		slices.SortFunc(out, func(x, y decisions.RefusalGroup) int {
			return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Reason, y.Reason))
		})
	}
	return out
}

func preempted(preemption *event.Preemption) *decisions.Preemption {
	if preemption == nil {
		return nil
	}
	out := &decisions.Preemption{
		Node:          preemption.Node,
		Count:         int32(preemption.Count),
		PDBViolations: int32(preemption.PDBViolations),
		Reprieved:     int32(preemption.Reprieved),
		Candidates:    int32(preemption.Candidates), // counts
		RunnerUp:      preemption.RunnerUp,
		Why:           preemption.Why,
	}
	for _, v := range preemption.Victims {
		out.Victims = append(out.Victims, decisions.Victim{Namespace: v.Namespace, Name: v.Name, Priority: v.Priority})
	}
	return out
}
