// SPDX-License-Identifier: Apache-2.0

// Package story makes steps of what a ledger keeps about a pod: who did what when, which hand-off that was, what the
// pod waited for (Of), and what the scheduler decided and who ended the pod (WhyOf). It is pure: it reads no clock and
// no object, and it has no words, which timeline/text writes.
package story

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"keelson/api/decisions"
	"keelson/event"
)

// Record is what is kept about one object.
type Record struct {
	Subject event.Subject
	Marks   []event.Event // by the time of their start
	// Dropped and DroppedEvents count marks and watch events that are not kept.
	Dropped, DroppedEvents int
	// Static means that the marks of a static pod are among those of its mirror pod.
	Static bool
	// LeavesFor is the pod, namespace/name, for which the scheduler preempts this one; empty: none.
	LeavesFor string
	// Decided is the last attempt, complete; nil: it is not kept.
	Decided *Decided
	// Namespace has the deletions of the pod's namespace, and of earlier ones with its name.
	Namespace []event.Event
	// RecordedSince is when the server began to record marks.
	RecordedSince time.Time
}

// Decided is a scheduling attempt with the result of its binding.
type Decided struct {
	At       time.Time
	Took     time.Duration
	Attempt  *decisions.Attempt
	Bind     *event.Bind // nil: not yet bound
	BindTook time.Duration
	BindErr  string
}

// OwnerKinds are the resources whose requests and reconciles can begin a pod's story.
var OwnerKinds = map[string]string{
	"replicasets":            "ReplicaSet",
	"deployments":            "Deployment",
	"replicationcontrollers": "ReplicationController",
	"statefulsets":           "StatefulSet",
	"daemonsets":             "DaemonSet",
	"jobs":                   "Job",
	"cronjobs":               "CronJob",
}

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
	// Static means that the story begins with a file that the pod's kubelet read.
	Static bool `json:"static,omitempty"`
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
	At   time.Duration `json:"at"`
	Took time.Duration `json:"took"`
	Who  string        `json:"who"`
	// What is what the step says in words (timeline/text), or the request of a watcher.
	What  string `json:"what"`
	Error string `json:"error,omitempty"`
	// HandOff is the hand-off to which the step belongs, 0: none.
	HandOff int `json:"handOff,omitempty"`
	// ReportedBy is the node that reported the step, unverified; empty: the control plane reported it.
	ReportedBy string `json:"reportedBy,omitempty"`
	// Watch is the change that a step delivers to watchers, which are its parts; nil: it delivers none.
	Watch *Watch `json:"watch,omitempty"`
	// Idle means that a stage of a request has let it pass quickly and unchanged.
	Idle  bool   `json:"idle,omitempty"`
	Parts []Step `json:"parts,omitempty"`

	// Mark is what the step says; nil: its parts say it.
	Mark *event.Event `json:"-"`
	// Stage is the stage of Mark's request that a part is; empty: it is none.
	Stage Stage `json:"-"`
	// Whole means that a request is shown with its stages.
	Whole bool `json:"-"`
	// LeavesFor is the pod, namespace/name, for which a request deletes this one.
	LeavesFor string `json:"-"`
	// Again means that an attempt is not the first one of the story; Times is how often a part happened.
	Again bool `json:"-"`
	Times int  `json:"-"`
}

// Watch is a change of an object, as watchers get it.
type Watch struct {
	Resource string `json:"resource"`
	Revision int64  `json:"revision"`
}

// JustMade reports whether a partial story only lacks the mark of the pod's creation because it has not arrived yet:
// watchers get a new pod before its request has ended.
func (s *Story) JustMade() bool {
	const late = 2 * time.Second // Created is rounded down by up to a second
	return s.Partial && s.MadeSince() && s.Start.Before(s.Created.Add(late))
}

// MadeSince reports whether the pod may have been made since the server records marks.
func (s *Story) MadeSince() bool {
	return !s.Created.IsZero() && s.Created.Add(time.Second).After(s.RecordedSince)
}

// Of makes a story of the records of a pod and of its owners, nearest first. It has no words yet.
func Of(pod *Record, owners []*Record) Story {
	marks := pod.Marks
	story := Story{
		Namespace:     pod.Subject.Namespace,
		Name:          pod.Subject.Name,
		UID:           pod.Subject.UID,
		Phase:         "Pending",
		Dropped:       pod.Dropped,
		DroppedEvents: pod.DroppedEvents,
	}
	if story.Partial = creation(marks).IsZero(); story.Partial {
		story.Phase = ""
		story.RecordedSince = pod.RecordedSince
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
		leavesFor: pod.LeavesFor,
	}
	for _, m := range all {
		story.note(m)
		w.write(m)
	}
	w.flush()
	w.sortReceivers()
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
		if node, ok := strings.CutPrefix(mk.Component, "kubelet "); ok && (d.Source == sourceFile || s.Node == "") {
			s.Node = node
		}
		s.Simulated = d.Source == SourceSimulator
		s.Static = s.Static || d.Source == sourceFile
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
func causesOf(marks []event.Event, owners []*Record, story *Story) []event.Event {
	var out []event.Event
	child := creation(marks)
	childName := story.Name
	made := true
	for i, o := range owners {
		if i == 0 {
			story.Owner = OwnerKinds[o.Subject.Resource] + " " + o.Subject.Name
		}
		if child.IsZero() {
			return out
		}
		all := o.Marks
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
		childName = o.Subject.Name
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
