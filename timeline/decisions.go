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
	about *decisions.Attempt
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
func (l *decisionLog) set(m *event.Event, about *decisions.Attempt) {
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
	if d := l.of(m.Subject.UID); d != nil && d.about.Node == b.Node {
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
func sizeOf(decision *decisions.Attempt) int {
	n := sizeDecided + len(decision.Message) + len(decision.WaitsFor) + len(decision.Node) + len(decision.PodGroup)
	for i := range decision.Refusals {
		v := &decision.Refusals[i]
		n += sizeVerdict + len(v.Node) + len(v.Plugin) + len(v.Reason) + len(v.Shortage) + len(v.Hint)
	}
	for reason := range decision.Reasons {
		n += len(reason) + 2*sizeText
	}
	for i := range decision.Scores {
		n += sizeScore + len(decision.Scores[i].Node) + len(decision.Scores[i].Plugins)*sizeShare +
			len(decision.Scores[i].Rules)*sizeGiven
	}
	for i := range decision.Rules {
		n += sizeRule + len(decision.Rules[i].Policy) + len(decision.Rules[i].Field) + len(decision.Rules[i].Expression)
	}
	for i := range decision.RefusedBy {
		n += sizeGroup + len(decision.RefusedBy[i].Reason) + len(decision.RefusedBy[i].Plugin)
		for _, name := range decision.RefusedBy[i].Names {
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
func brief(d *decisions.Attempt) *decisions.Attempt {
	const verdicts, scores = 3, 3
	if len(d.Refusals) <= verdicts && len(d.Scores) <= scores && len(d.RefusedBy)+len(d.Rules) == 0 {
		return d
	}
	c := *d
	c.Refusals = slices.Clone(d.Refusals[:min(len(d.Refusals), verdicts)])
	c.Scores = slices.Clone(d.Scores[:min(len(d.Scores), scores)])
	for i := range c.Scores {
		c.Scores[i].Plugins = nil
		c.Scores[i].Rules = nil
	}
	c.RefusedBy = nil
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
	out := &decisions.PodDecision{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(decided.at)},
		Status:     decided.about.PodDecisionStatus,
	}
	s := &out.Status
	s.Message = message(decided.about)
	s.Took.Duration = decided.took
	s.ExtensionPoints = extensionPoints(s.ExtensionPoints, decided.bound, decided.bind)
	s.Result, s.Node, s.Reason = outcome(decided)
	if len(s.RefusedBy) == 0 {
		s.RefusedBy = refusedBy(decided.about.Reasons)
	}
	if len(s.Scores) > 1 {
		s.RunnerUp = s.Scores[1].Node
	}
	return out
}

// message is the scheduler's message, with the state of the pod's group.
func message(a *decisions.Attempt) string {
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
	case decision.Node != "" && d.err != "":
		return decisions.BindFailed, decision.Node, d.err
	case decision.Node != "" && decision.Feasible == 1:
		return decisions.Scheduled, decision.Node, "the only node that fits"
	case decision.Node != "" && decision.Tied > 1:
		return decisions.Scheduled, decision.Node, fmt.Sprintf("one of %d with the highest score", decision.Tied)
	case decision.Node != "":
		return decisions.Scheduled, decision.Node, "the highest score"
	case decision.Preemption != nil:
		return decisions.Preempting, decision.Preemption.Node,
			fmt.Sprintf("%s must go", plural(int(decision.Preemption.Count), "pod"))
	}
	return decisions.Unschedulable, "", cmp.Or(counted(decision.Reasons), decision.Message)
}

// extensionPoints are those of an attempt and of its binding, which takes took; bound is nil before it.
func extensionPoints(
	tried []decisions.ExtensionPoint, bound *event.Bind, took time.Duration,
) []decisions.ExtensionPoint {
	if bound == nil {
		return tried
	}
	all := decisions.PodDecisionStatus{ExtensionPoints: slices.Clone(tried)}
	all.AddPoint("Reserve", bound.Reserve)
	all.AddPoint("Permit", bound.Permit)
	all.AddPoint("PreBind", bound.PreBind)
	all.AddPoint("Bind", took-bound.PreBind)
	return all.ExtensionPoints
}

// refusedBy groups nodes by reason only, the most frequent first.
func refusedBy(reasons map[string]int) []decisions.RefusalGroup {
	var out []decisions.RefusalGroup
	for reason, n := range reasons {
		out = append(out, decisions.RefusalGroup{Reason: reason, Nodes: int32(n)}) // a number of nodes
	}
	slices.SortFunc(out, func(x, y decisions.RefusalGroup) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Reason, y.Reason))
	})
	return out
}
