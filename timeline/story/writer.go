// SPDX-License-Identifier: Apache-2.0

package story

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"keelson/api/decisions"
	"keelson/event"
)

// writer converts ordered marks to steps. Consecutive marks of one component become one line.
type writer struct {
	start    time.Time
	detailed map[*event.Request]bool
	steps    []Step

	open      *Step // the current line of the kubelet or scheduler
	openKind  string
	decisions int
	handOffs  *classifier
	leavesFor string
	tries     map[string]int    // index of the part about a repeated step, of the open line
	failing   map[string]int    // index of the part about a failing probe
	events    map[delivered]int // index of the step about the event of an object's revision
}

func (w *writer) write(mk event.Event) {
	switch d := mk.Detail.(type) {
	case *event.Request:
		// A request is a line of the API server. The kubelet's open line continues after a status write that changes
		// nothing.
		if d.Subresource != "status" || d.Status != nil || mk.Err != "" {
			w.flush()
		}
		w.steps = append(w.steps, w.request(mk, d))
	case *event.Reconcile:
		w.flush()
		w.steps = append(w.steps, w.reconcile(mk, d))
	case *event.Eviction, *event.Resolvable:
		w.flush()
		w.steps = append(w.steps, Step{
			At:      mk.At.Sub(w.start),
			Took:    mk.Took,
			Who:     mk.Component,
			HandOff: w.handOffs.of(mk),
			Mark:    &mk,
		})
	case *event.Delivery:
		w.delivery(mk, d)
	case *event.Queued, *decisions.Attempt, *event.Bind:
		w.part("scheduler", mk)
	default:
		w.part("kubelet", mk)
		if mk.Step == event.StepReady || mk.Step == event.StepTerminated {
			w.flush()
		}
	}
}

// part adds a mark to the line of its component.
func (w *writer) part(kind string, mk event.Event) {
	if w.openKind != kind || w.open != nil && (w.open.Who != mk.Component || w.open.ReportedBy != mk.ReportedBy) {
		w.flush()
	}
	at := mk.At.Sub(w.start)
	if w.open == nil {
		w.open = &Step{At: at, Who: mk.Component, ReportedBy: mk.ReportedBy}
		w.openKind = kind
	}
	attempt, isAttempt := mk.Detail.(*decisions.Attempt)
	if isAttempt {
		w.decisions++
	}
	w.open.Took = max(w.open.Took, at+mk.Took-w.open.At)
	if mk.Err != "" && w.open.Error == "" {
		w.open.Error = mk.Err
	}
	if !silent(mk) && !w.known(mk) && !w.again(mk) {
		w.open.Parts = append(w.open.Parts, Step{
			At:         at,
			Took:       mk.Took,
			Who:        mk.Component,
			Error:      mk.Err,
			ReportedBy: mk.ReportedBy,
			HandOff:    w.handOffs.of(mk),
			Mark:       &mk,
			Again:      isAttempt && w.decisions > 1,
			Times:      1,
		})
	}
	if isAttempt && attempt.Node == "" {
		w.flush() // the next attempt gets its own line
	}
}

// silent reports whether a mark adds nothing to a line: the first entry into the queue, a pod without volumes, a pull
// that begins (the next mark has its result).
func silent(mk event.Event) bool {
	if mk.Err != "" {
		return false
	}
	switch d := mk.Detail.(type) {
	case *event.Queued:
		return d.Why == "" || d.Why == "PodAdd"
	case *event.Volumes:
		return d.Count == 0
	case *event.Image:
		return !d.Present && !d.Done && d.Total == 0 && d.Bytes == 0
	}
	return false
}

// again reports whether the open line has this step already, as with retries: then it only counts it.
func (w *writer) again(m event.Event) bool {
	key := ""
	switch d, _ := m.Detail.(*event.Image); {
	case m.Err != "":
		key = string(m.Step) + m.Err
	case d != nil && d.Present:
		key = d.Image
	default:
		return false
	}
	if w.tries == nil {
		w.tries = map[string]int{}
	}
	i, ok := w.tries[key]
	if !ok {
		w.tries[key] = len(w.open.Parts)
		return false
	}
	if i < len(w.open.Parts) {
		w.open.Parts[i].Times++
	}
	return true
}

// known reports whether the mark needs no new step: an unchanged status write is shown once, and the steps during a
// pull are removed when it has ended.
func (w *writer) known(mk event.Event) bool {
	switch d := mk.Detail.(type) {
	case *event.Status:
		return mk.Step == event.StepStatus && mk.Err == "" && slices.ContainsFunc(w.open.Parts, func(p Step) bool {
			earlier, ok := p.Mark.Detail.(*event.Status)
			return ok && p.Mark.Step == event.StepStatus && p.Error == "" && phases(earlier) == phases(d)
		})
	case *event.Image:
		if !d.Done && !d.Present && slices.ContainsFunc(w.open.Parts, func(p Step) bool {
			pulled, ok := p.Mark.Detail.(*event.Image)
			return ok && pulled.Image == d.Image && pulled.Done && !pulled.Present
		}) {
			return mk.Err == "" // the pull's own mark sorts first, by its start time
		}
		w.open.Parts = slices.DeleteFunc(w.open.Parts, func(p Step) bool {
			pull, ok := p.Mark.Detail.(*event.Image)
			return ok && p.Error == "" && pull.Image == d.Image && !pull.Done && !pull.Present && pull.Total > 0
		})
	case *event.Probe: // a failing probe: the counter is updated
		key := d.Container + " " + d.Kind
		if i, ok := w.failing[key]; ok && !d.Success && i == len(w.open.Parts)-1 {
			w.open.Parts = w.open.Parts[:i]
		}
		delete(w.failing, key)
		if !d.Success {
			if w.failing == nil {
				w.failing = map[string]int{}
			}
			w.failing[key] = len(w.open.Parts)
		}
	}
	return false
}

// phases are the phases before and after a status write; equal ones count as none.
func phases(d *event.Status) [2]string {
	if d.From == "" || d.From == d.To {
		return [2]string{}
	}
	return [2]string{d.From, d.To}
}

func (w *writer) flush() {
	if w.open == nil {
		return
	}
	w.open.HandOff = common(w.open.Parts)
	if len(w.open.Parts) > 0 {
		w.steps = append(w.steps, *w.open)
	}
	w.open = nil
	w.openKind = ""
	w.tries = nil
	w.failing = nil
}

// request is an API write; the story's first one has its stages.
func (w *writer) request(m event.Event, req *event.Request) Step {
	step := Step{
		At:      m.At.Sub(w.start),
		Took:    m.Took,
		Who:     m.Component,
		Error:   m.Err,
		HandOff: w.handOffs.of(m),
		Mark:    &m,
		Whole:   w.detailed[req],
	}
	if step.Whole {
		step.Parts = Stages(&step)
	}
	if req.User == SchedulerUser && req.Verb == http.MethodDelete {
		step.LeavesFor = w.leavesFor
	}
	return step
}

// reconcile is a pass of a controller. It begins when the controller got the change that led to it.
func (w *writer) reconcile(mk event.Event, d *event.Reconcile) Step {
	at := mk.At
	if !d.EventSeen.IsZero() && d.EventSeen.Before(at) && at.Sub(d.EventSeen) < causal {
		at = d.EventSeen
	}
	if at.Before(w.start) {
		at = w.start
	}
	return Step{
		At:      at.Sub(w.start),
		Took:    mk.At.Add(mk.Took).Sub(at),
		Who:     mk.Component,
		Error:   mk.Err,
		HandOff: w.handOffs.of(mk),
		Mark:    &mk,
	}
}

// delivery adds a watch event: one step for all receivers.
func (w *writer) delivery(mk event.Event, d *event.Delivery) {
	to := Step{
		At:      mk.At.Sub(w.start),
		Took:    mk.Took,
		Who:     watcherOf(d.To),
		What:    d.Watches,
		HandOff: w.handOffs.of(mk),
	}
	key := delivered{mk.Subject.UID, d.Revision}
	if i, ok := w.events[key]; ok {
		w.steps[i].Parts = append(w.steps[i].Parts, to)
		w.steps[i].Took = max(w.steps[i].Took, mk.Took)
		return
	}
	if w.events == nil {
		w.events = map[delivered]int{}
	}
	w.events[key] = len(w.steps)
	w.steps = append(w.steps, Step{
		HandOff: to.HandOff,
		At:      to.At,
		Took:    mk.Took,
		Who:     mk.Component,
		Watch:   &Watch{Resource: mk.Subject.Resource, Revision: d.Revision},
		Parts:   []Step{to},
	})
}

// delivered is a change of an object.
type delivered struct {
	uid      string
	revision int64
}

// sortReceivers orders the receivers of each watch event by when they got it.
func (w *writer) sortReceivers() {
	for _, i := range w.events {
		slices.SortStableFunc(w.steps[i].Parts, func(a, b Step) int { return int(a.Took - b.Took) })
	}
}

// watcherOf returns the component name for a user name, as the other steps show it.
func watcherOf(user string) string {
	switch user {
	case "system:kube-scheduler":
		return "scheduler"
	case "system:kube-controller-manager":
		return "controllers"
	}
	if node, ok := strings.CutPrefix(user, "system:node:"); ok {
		return "kubelet " + node
	}
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		return strings.TrimPrefix(strings.Replace(account, ":", "/", 1), "kube-system/")
	}
	return strings.TrimPrefix(user, "system:")
}
