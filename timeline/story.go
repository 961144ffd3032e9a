// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"keelson/api/decisions"
	"keelson/event"
)

// Story shows how a pod was created and started. Durations are in nanoseconds.
type Story struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Phase     string `json:"phase"`
	Node      string `json:"node,omitempty"`
	// Owner is the controller object ("ReplicaSet my-replicaset"), OwnerRevision the store revision that led to this
	// pod, 0: unknown.
	Owner         string `json:"owner,omitempty"`
	OwnerRevision int64  `json:"ownerRevision,omitempty"`
	// Start is the time of the first request that led to the pod, if it is remembered.
	Start time.Time `json:"start"`
	// ReadyAfter is the time from Start to the first Ready; 0: not ready yet.
	ReadyAfter time.Duration `json:"readyAfter,omitempty"`
	// ReachableAfter is the time from Start until a Service leads to the pod; 0: none yet.
	ReachableAfter time.Duration `json:"reachableAfter,omitempty"`
	// Total is the time from Start to Ready, or to the end of the last step; Accounted is the part covered by steps.
	Total     time.Duration `json:"total"`
	Accounted time.Duration `json:"accounted"`
	// Gaps are the longest times between steps, the longest first: what the pod waited for.
	Gaps []Gap `json:"gaps,omitempty"`
	// Simulated means that a fake node has the pod: nothing runs there.
	Simulated bool `json:"simulated,omitempty"`
	// Partial means that the pod was created before the server started, or that its first marks were dropped. Phase is
	// empty until a status shows it.
	Partial bool `json:"partial,omitempty"`
	// RecordedSince is when the server began to record marks; only in a partial story.
	RecordedSince time.Time `json:"recordedSince,omitzero"`
	// Steps are ordered by start time.
	Steps []Step `json:"steps"`
	// Dropped counts marks that were dropped from the middle of a long story.
	Dropped int `json:"dropped,omitempty"`
	// DroppedEvents counts later watch events that were dropped.
	DroppedEvents int `json:"droppedEvents,omitempty"`
	// Waits explains why the pod is not Ready, from the API; empty: unknown.
	Waits string `json:"-"`
	// Created is the pod's creationTimestamp, in whole seconds, from the API; zero: unknown. A partial story needs it.
	Created time.Time `json:"-"`
	// Done means that the pod is Ready, finished or deleted, so that the story is complete.
	Done bool `json:"done"`
}

// Step is one line: who did what, from At (since Start) on, for Took. Parts are its details.
type Step struct {
	At    time.Duration `json:"at"`
	Took  time.Duration `json:"took"`
	Who   string        `json:"who"`
	What  string        `json:"what"`
	Error string        `json:"error,omitempty"`
	// HandOff is the hand-off to which the step belongs, 0: none.
	HandOff int `json:"handOff,omitempty"`
	// ReportedBy is the node that reported the step, unverified; empty: the control plane reported it.
	ReportedBy string `json:"reportedBy,omitempty"`
	Parts      []Step `json:"parts,omitempty"`
}

// Story returns a pod's story; ErrUnknown if there is none.
func (t *Timeline) Story(namespace, name string) (Story, error) {
	pod, owners, err := t.snapshot(namespace, name)
	if err != nil {
		return Story{}, err
	}
	s := join(pod, owners)
	if s.Partial {
		s.RecordedSince = t.since
	}
	return s, nil
}

// JustMade reports whether a partial story only lacks the mark of the pod's creation because it has not arrived yet:
// watchers get a new pod before its request has ended.
func (s *Story) JustMade() bool {
	const late = 2 * time.Second // Created is rounded down by up to a second
	return s.Partial && s.madeSince() && s.Start.Before(s.Created.Add(late))
}

// madeSince reports whether the pod may have been made since the server records marks.
func (s *Story) madeSince() bool {
	return !s.Created.IsZero() && s.Created.Add(time.Second).After(s.RecordedSince)
}

// join builds a story from marks.
func join(pod *record, owners []*record) Story {
	marks := pod.marks()
	story := Story{
		Namespace:     pod.subject.Namespace,
		Name:          pod.subject.Name,
		UID:           pod.uid,
		Phase:         "Pending",
		Dropped:       pod.dropped,
		DroppedEvents: pod.left,
	}
	if story.Partial = creation(marks).IsZero(); story.Partial {
		story.Phase = ""
	}
	causes := causesOf(marks, owners, &story)
	all := slices.Concat(causes, marks)
	slices.SortStableFunc(all, func(a, b event.Event) int { return a.At.Compare(b.At) })
	story.Start = all[0].At
	if i := slices.IndexFunc(all, func(m event.Event) bool { return m.ReportedBy == "" }); i >= 0 {
		story.Start = all[i].At // a node's clock must not set the start of the story
	}
	w := writer{
		start:     story.Start,
		detailed:  detailed(all),
		handOffs:  newClassifier(all, pod, owners),
		leavesFor: pod.leavesFor,
	}
	for _, m := range all {
		story.note(m)
		w.write(m)
	}
	w.flush()
	w.completeDeliveries()
	story.Steps = w.steps
	slices.SortStableFunc(story.Steps, func(a, b Step) int { return int(a.At - b.At) })
	for _, st := range story.Steps {
		story.Total = max(story.Total, st.At+st.Took)
	}
	if story.ReadyAfter > 0 {
		story.Total = story.ReadyAfter
	}
	spans := covered(story.Steps, story.Total)
	for _, s := range spans {
		story.Accounted += s.to - s.from
	}
	story.Gaps = gaps(story.Steps, spans, story.Total)
	return story
}

// note updates the story's fields from a event.
func (s *Story) note(mk event.Event) {
	switch d := mk.Detail.(type) {
	case *decisions.Attempt:
		if d.Node != "" {
			s.Node = d.Node
		}
	case *event.Bind:
		s.Node = d.Node
	case *event.Seen:
		if node, ok := strings.CutPrefix(mk.Component, "kubelet "); ok && (d.Source == "file" || s.Node == "") {
			s.Node = node
		}
		s.Simulated = d.Source == simulator
	case *event.Reachable:
		if s.ReachableAfter == 0 {
			s.ReachableAfter = mk.At.Add(mk.Took).Sub(s.Start)
		}
	case *event.Status:
		if d.To != "" {
			s.Phase = d.To
		}
		s.Done = s.Done || d.To == "Succeeded" || d.To == "Failed"
		switch mk.Step {
		case event.StepReady:
			if s.ReadyAfter == 0 && mk.Err == "" {
				s.ReadyAfter = mk.At.Add(mk.Took).Sub(s.Start)
				s.Done = true
			}
		case event.StepTerminated:
			s.Phase = "Terminated"
			s.Done = true
		}
	case *event.Request:
		if d.Verb == http.MethodDelete && d.Resource == "pods" && d.Subresource == "" && d.Code < 300 &&
			s.Phase != "Terminated" {
			s.Phase = "Terminating"
			s.Done = s.Done || s.Node == ""
		}
	}
}

// causal is the longest time between the end of a request on an owner and the controller's observation of it. An older
// request did not cause the reconcile.
const causal = 2 * time.Second

// causesOf returns the marks of owners that led to the pod: the reconcile that created it, the request before it, and
// so on for the owner's owner.
func causesOf(marks []event.Event, owners []*record, story *Story) []event.Event {
	var out []event.Event
	child := creation(marks)
	childName := story.Name
	made := true
	for i, o := range owners {
		if i == 0 {
			story.Owner = ownerKinds[o.subject.Resource] + " " + o.subject.Name
		}
		if child.IsZero() {
			return out
		}
		all := o.marks()
		r := reconcileOf(all, child, childName, made)
		if r == nil {
			return out
		}
		out = append(out, *r)
		seen := r.At
		if d, ok := r.Detail.(*event.Reconcile); ok && !d.EventSeen.IsZero() && d.EventSeen.Before(seen) {
			seen = d.EventSeen
		}
		mk := requestBefore(all, r.At, seen)
		if mk == nil {
			return out
		}
		out = append(out, *mk)
		if d, ok := mk.Detail.(*event.Request); ok {
			for _, m := range all {
				if e, ok := m.Detail.(*event.Delivery); ok && e.Revision == d.Revision {
					out = append(out, m)
				}
			}
			made = d.Verb == http.MethodPost && d.Subresource == ""
			if i == 0 {
				story.OwnerRevision = d.Revision
			}
		}
		child = mk.At
		childName = o.subject.Name
	}
	return out
}

// creation is when the request that created the object arrived.
func creation(marks []event.Event) time.Time {
	for _, m := range marks {
		if d, ok := m.Detail.(*event.Request); ok && d.Verb == http.MethodPost && d.Subresource == "" && d.Code < 300 {
			return m.At
		}
	}
	return time.Time{}
}

// reconcileOf finds the reconcile that wrote the child: the one during which it was written or, for a new child, the
// one that names it. For an existing child that was changed (a scaled ReplicaSet), the reconcile that names it is an
// old one.
func reconcileOf(marks []event.Event, child time.Time, name string, made bool) *event.Event {
	var during, named *event.Event
	for i := range marks {
		d, ok := marks[i].Detail.(*event.Reconcile)
		if !ok {
			continue
		}
		if made && slices.Contains(d.Creates, name) && !marks[i].At.After(child) {
			named = &marks[i] // an earlier one made an object of the same name, as of a StatefulSet's pod
		}
		if !child.Before(marks[i].At) && !child.After(marks[i].At.Add(marks[i].Took)) {
			during = &marks[i]
		}
	}
	if named != nil {
		return named
	}
	return during
}

// requestBefore finds the last write of the owner's spec before the reconcile.
func requestBefore(marks []event.Event, reconcile, seen time.Time) *event.Event {
	var last *event.Event
	for i := range marks {
		d, ok := marks[i].Detail.(*event.Request)
		if !ok || d.Code >= 300 || marks[i].At.After(reconcile) || d.Verb == http.MethodDelete {
			continue
		}
		if seen.Sub(marks[i].At.Add(marks[i].Took)) <= causal {
			last = &marks[i]
		}
	}
	return last
}

// detailed are the requests that are shown with stages: the first one, and those that created an object or bound the
// pod.
func detailed(all []event.Event) map[*event.Request]bool {
	out := map[*event.Request]bool{}
	for _, m := range all {
		if d, ok := m.Detail.(*event.Request); ok &&
			(len(out) == 0 || d.Verb == http.MethodPost && (d.Subresource == "" || d.Subresource == "binding")) {
			out[d] = true
		}
	}
	return out
}

// span is a time between from and to, since the story's start.
type span struct{ from, to time.Duration }

// covered are the parts of [0, total] that lie within at least one step, in order and apart from each other.
func covered(steps []Step, total time.Duration) []span {
	var all []span
	for _, s := range steps {
		if one := (span{max(s.At, 0), min(s.At+s.Took, total)}); one.to > one.from {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b span) int { return int(a.from - b.from) })
	var out []span
	for _, s := range all {
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

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
	tries     map[string]*tried // of the open line
	failing   map[string]int    // index of the part about a failing probe
	events    map[string]int    // index of the step about the event of an object's revision
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
	case *event.Eviction:
		w.flush()
		w.steps = append(w.steps, Step{
			At:      mk.At.Sub(w.start),
			Who:     mk.Component,
			What:    evicted(d),
			HandOff: w.handOffs.of(mk),
		})
	case *event.Delivery:
		w.delivery(mk, d)
	case *event.Resolvable:
		w.flush()
		w.steps = append(w.steps, Step{
			At:      mk.At.Sub(w.start),
			Took:    mk.Took,
			Who:     mk.Component,
			HandOff: w.handOffs.of(mk),
			What:    "name " + d.Name + " leads to it",
		})
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
	what := say(mk)
	at := mk.At.Sub(w.start)
	if w.open == nil {
		w.open = &Step{At: at, Who: mk.Component, ReportedBy: mk.ReportedBy}
		w.openKind = kind
	}
	if d, ok := mk.Detail.(*decisions.Attempt); ok {
		if w.decisions++; w.decisions > 1 {
			what = "try " + strconv.Itoa(int(d.Attempt)) + ": " + what
		}
	}
	w.open.Took = max(w.open.Took, at+mk.Took-w.open.At)
	if mk.Err != "" && w.open.Error == "" {
		w.open.Error = mk.Err
	}
	if what != "" && !w.told(mk, what) && !w.again(mk, what) {
		w.open.Parts = append(w.open.Parts, Step{
			At:         at,
			Took:       mk.Took,
			Who:        mk.Component,
			What:       what,
			Error:      mk.Err,
			ReportedBy: mk.ReportedBy,
			HandOff:    w.handOffs.of(mk),
		})
	}
	if d, ok := mk.Detail.(*decisions.Attempt); ok && d.Node == "" {
		w.flush() // the next attempt gets its own line
	}
}

// again reports whether the open line has this step already, as with retries: then it only counts it.
func (w *writer) again(m event.Event, what string) bool {
	key := what
	if d, ok := m.Detail.(*event.Image); m.Err != "" {
		key = string(m.Step) + m.Err
	} else if !ok || !d.Present {
		return false
	}
	if w.tries == nil {
		w.tries = map[string]*tried{}
	}
	t := w.tries[key]
	if t == nil {
		w.tries[key] = &tried{part: len(w.open.Parts), times: 1, what: what}
		return false
	}
	t.times++
	if t.part < len(w.open.Parts) {
		w.open.Parts[t.part].What = fmt.Sprintf("%s (%d times)", t.what, t.times)
	}
	return true
}

// tried is a step in an open line and its number of repetitions.
type tried struct {
	part, times int
	what        string
}

// told reports whether the mark needs no new step: an unchanged status write is shown once, and the steps during a pull
// are removed when it has ended.
// ended the steps on the way are taken back.
func (w *writer) told(mk event.Event, what string) bool {
	switch d := mk.Detail.(type) {
	case *event.Status:
		return mk.Step == event.StepStatus && mk.Err == "" && slices.ContainsFunc(w.open.Parts, func(p Step) bool {
			return p.What == what
		})
	case *event.Image:
		pulled := "image " + d.Image + " pulled"
		if !d.Done && !d.Present && slices.ContainsFunc(w.open.Parts, func(p Step) bool {
			return strings.HasPrefix(p.What, pulled)
		}) {
			return mk.Err == "" // the pull's own mark sorts first, by its start time
		}
		w.open.Parts = slices.DeleteFunc(w.open.Parts, func(p Step) bool {
			return p.Error == "" && strings.HasPrefix(p.What, "image "+d.Image+" ") && strings.Contains(p.What, " of ")
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

func (w *writer) flush() {
	if w.open == nil {
		return
	}
	said := make([]string, 0, len(w.open.Parts))
	for _, p := range w.open.Parts {
		said = append(said, p.What)
	}
	w.open.HandOff = common(w.open.Parts)
	if w.open.What = strings.Join(said, "; "); w.open.What != "" {
		w.steps = append(w.steps, *w.open)
	}
	w.open = nil
	w.openKind = ""
	w.tries = nil
	w.failing = nil
}
