// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/holdback"
	"keelson/kubelet/pod/decide"
)

// startTurn is how far the pod is with its start, of which holdback keeps count.
type startTurn struct {
	subject   holdback.Subject
	entered   bool      // the start is under way
	held      bool      // it is held back
	announced time.Time // the end of the hold of which the last event was
}

// decideHeld is decide.Decide, and asks before the first action of a start whether it may begin (package holdback). A
// pod that is held back gets a plan that begins none.
func (l *loop) decideHeld(in *decide.Input) decide.Plan {
	plan := decide.Decide(*in)
	if l.s.start.entered {
		return plan
	}
	if !slices.ContainsFunc(plan.Actions, in.Starting) {
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
	l.s.start.announce(l.env, in)
	return decide.Decide(*in)
}

// announce records an event for each new hold, but not for a turn, which comes soon.
func (t *startTurn) announce(env *Env, in *decide.Input) {
	if in.Held.Turn || t.announced.Equal(in.Held.Until) {
		return
	}
	t.announced = in.Held.Until
	env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, decide.ReasonHeld, in.Held.Message)
	env.Log.Warn("start held back", "pod", in.Pod.Namespace+"/"+in.Pod.Name, "until", in.Held.Until)
}

// leaveStart ends the pod's start when none of its actions is under way.
func (l *loop) leaveStart(in decide.Input) {
	if !l.s.start.entered || l.s.actions.flying(decide.OpVolumes, decide.OpSandbox, decide.OpStart) {
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
func (l *loop) hasStarted(in decide.Input) bool {
	box := in.Observed.Current()
	if !l.s.volumes.done || box == nil || !in.MainsBegun(box.ID) {
		return false
	}
	for key := range l.s.actions.failed {
		if key != opStatus {
			return false
		}
	}
	return true
}
