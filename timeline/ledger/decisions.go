// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"container/list"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// DefaultDecisionBytes is the default memory limit for complete decisions.
const DefaultDecisionBytes = 16 << 20

// decided is the last scheduling attempt of a pod, with what it takes to keep it.
type decided struct {
	story.Decided
	uid   string
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
		Decided: story.Decided{At: m.At, Took: m.Took, Attempt: about},
		uid:     uid,
		bytes:   sizeOf(about) + len(uid),
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
	if d := l.of(m.Subject.UID); d != nil && d.Attempt.Node == b.Node {
		c := *d // a copy: readers may hold the old value
		c.Bind = b
		c.BindTook = m.Took
		c.BindErr = m.Err
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

// Decided returns what is kept of a pod's last attempt, nil if nothing. It is shared: never modified.
func (t *Ledger) Decided(pod types.UID) *story.Decided {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.decided.of(string(pod))
	if d == nil {
		return nil
	}
	return &d.Decided
}
