// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/holdback"
)

// starting reports whether an action is one of those during which the process may die of the pod, and which wait while
// the pod is held back. Volumes of a pod that runs are looked after at each start of the kubelet: that alone makes no
// suspect of it.
func (in *Input) starting(a Action) bool {
	switch a.Op {
	case OpSandbox, OpStart:
		return true
	case OpVolumes:
		return !in.anyAlive()
	case OpStop, OpStopSandbox, OpTearDown, OpRemoveContainer, OpRemoveSandbox, OpDelete, OpForget, OpResize:
	}
	return false
}

// startTurn is how far the pod is with its start, of which holdback keeps count.
type startTurn struct {
	subject   holdback.Subject
	entered   bool      // the start is under way
	held      bool      // it is held back
	announced time.Time // the end of the hold of which the last event was
}

// decide returns the plan. Before the first action of a start the pod enters; one that is held back begins none.
func (l *loop) decide(in *Input) Plan {
	plan := Decide(*in)
	if l.s.start.entered {
		return plan
	}
	if !slices.ContainsFunc(plan.Actions, in.starting) {
		if l.s.start.held {
			l.s.start.held = false
			l.env.Starts.Withdraw(l.s.start.subject)
		}
		return plan
	}
	in.Held = l.env.Starts.Enter(l.s.start.subject, func() { l.inbox.notify(Nothing) })
	l.s.start.held = in.Held != nil
	if in.Held == nil {
		l.s.start.entered = true
		return plan
	}
	l.heldEvent(in)
	return Decide(*in)
}

// heldEvent records an event for each new hold, but not for a turn, which comes soon.
func (l *loop) heldEvent(in *Input) {
	if in.Held.Turn || l.s.start.announced.Equal(in.Held.Until) {
		return
	}
	l.s.start.announced = in.Held.Until
	l.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, reasonHeld, in.Held.Message)
	l.env.Log.Warn("start held back", "pod", in.Pod.Namespace+"/"+in.Pod.Name, "until", in.Held.Until)
}

// leaveStart ends the pod's start when none of its actions is under way.
func (l *loop) leaveStart(in Input) {
	if !l.s.start.entered || l.s.actions.flying(OpVolumes, OpSandbox, OpStart) {
		return
	}
	l.s.start.entered = false
	l.env.Starts.Leave(l.s.start.subject, l.hasStarted(in))
}

// leaveUnfinished ends the start of a pod whose worker ends: the process does not die of it.
func (l *loop) leaveUnfinished() {
	if !l.s.start.entered {
		return
	}
	l.s.start.entered = false
	l.env.Starts.Leave(l.s.start.subject, false)
}

// hasStarted reports whether everything that the pod needed to start has succeeded.
func (l *loop) hasStarted(in Input) bool {
	box := in.Observed.Current()
	if !l.s.volumes.done || box == nil || !in.mainsBegun(box.ID) {
		return false
	}
	for key := range l.s.actions.failed {
		if key != opStatus {
			return false
		}
	}
	return true
}
