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
	entered   bool      // the start is under way
	held      bool      // it is held back
	announced time.Time // the end of the hold of which the last event was
}

func (w *Worker) startSubject() holdback.Subject {
	return holdback.Subject{UID: w.uid, Namespace: w.subject.Namespace, Name: w.subject.Name}
}

// decide returns the plan. Before the first action of a start the pod enters; one that is held back begins none.
func (w *Worker) decide(in *Input) Plan {
	plan := Decide(*in)
	if w.s.start.entered {
		return plan
	}
	subject := w.startSubject()
	if !slices.ContainsFunc(plan.Actions, in.starting) {
		if w.s.start.held {
			w.s.start.held = false
			w.env.Starts.Withdraw(subject)
		}
		return plan
	}
	in.Held = w.env.Starts.Enter(subject, func() { w.Notify(Nothing) })
	w.s.start.held = in.Held != nil
	if in.Held == nil {
		w.s.start.entered = true
		return plan
	}
	w.heldEvent(in)
	return Decide(*in)
}

// heldEvent records an event for each new hold, but not for a turn, which comes soon.
func (w *Worker) heldEvent(in *Input) {
	if in.Held.Turn || w.s.start.announced.Equal(in.Held.Until) {
		return
	}
	w.s.start.announced = in.Held.Until
	w.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, reasonHeld, in.Held.Message)
	w.env.Log.Warn("start held back", "pod", in.Pod.Namespace+"/"+in.Pod.Name, "until", in.Held.Until)
}

// leaveStart ends the pod's start when none of its actions is under way.
func (w *Worker) leaveStart(in Input) {
	if !w.s.start.entered || w.s.actions.flying(OpVolumes, OpSandbox, OpStart) {
		return
	}
	w.s.start.entered = false
	w.env.Starts.Leave(w.startSubject(), w.hasStarted(in))
}

// leaveUnfinished ends the start of a pod whose worker ends: the process does not die of it.
func (w *Worker) leaveUnfinished() {
	if !w.s.start.entered {
		return
	}
	w.s.start.entered = false
	w.env.Starts.Leave(w.startSubject(), false)
}

// hasStarted reports whether everything that the pod needed to start has succeeded.
func (w *Worker) hasStarted(in Input) bool {
	box := in.Observed.Current()
	if !w.s.volumes.done || box == nil || !in.mainsBegun(box.ID) {
		return false
	}
	for key := range w.s.actions.failed {
		if key != opStatus {
			return false
		}
	}
	return true
}
