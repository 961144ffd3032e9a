// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/decisions"
	"keelson/event"
)

// Why is the last scheduling result of a pod, and why it is not Ready on its node.
type Why struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is the pod's node; empty while it is pending.
	Node string `json:"node,omitempty"`
	// Since is when the scheduler first saw the pod, For how long it has been (or was) pending.
	Since time.Time     `json:"since"`
	For   time.Duration `json:"for"`
	Tries int           `json:"tries"`
	// Next says what triggers the next attempt.
	Next string `json:"next,omitempty"`
	// Reason is why no scheduling decision explains the pod's node or its absence; empty: a decision does.
	Reason string `json:"reason,omitempty"`
	// NotReady are the reasons why a pod that has a node is not Ready, as its kubelet has reported them; empty: it is,
	// or nothing is known.
	NotReady []string `json:"notReady,omitempty"`
	// BoundBy is the user that wrote pods/binding.
	BoundBy string `json:"boundBy,omitempty"`
	// Partial means that the pod's creation and earlier decisions are not remembered.
	Partial bool `json:"partial,omitempty"`
	// Gone means that the pod does not exist any more.
	Gone bool `json:"gone,omitempty"`
	// PreemptedBy is the pod, namespace/name, for which the scheduler deleted this one.
	PreemptedBy string `json:"preemptedBy,omitempty"`
	// Ended is how the pod ended or who ends it, if known: "evicted by ann", "Evicted: The node was low on resource:
	// memory".
	Ended string `json:"ended,omitempty"`
	// KilledBy are the probes because of which the kubelet ended the last run of a container.
	KilledBy []ProbeKill `json:"killedBy,omitempty"`
	// Terminating are the reasons why a pod that is being deleted is still there; empty: it is not being deleted.
	Terminating []string `json:"terminating,omitempty"`
	// Fake says that the pod's node is a fake one; empty: it is not, or it may not be read.
	Fake string `json:"fake,omitempty"`
	// Help are commands that help, each with what it does; empty: none is known.
	Help []string `json:"help,omitempty"`
	// Decision is the last attempt; absent: none yet. Brief: only the short form is remembered.
	Decision *decisions.Attempt `json:"decision,omitempty"`
	Brief    bool               `json:"brief,omitempty"`
	// MadeRoom are the preemptions for this pod by attempts before the last one.
	MadeRoom []*decisions.Preemption `json:"madeRoom,omitempty"`
	// Bind is the result of the binding, BindTook its duration since Permit.
	Bind     *event.Bind   `json:"bind,omitempty"`
	BindTook time.Duration `json:"bindTook,omitempty"`
	// Eviction is when a taint of its node evicts the pod; absent: none does. Left is the time until then.
	Eviction *event.Eviction `json:"eviction,omitempty"`
	Left     time.Duration   `json:"left,omitempty"`
}

// ProbeKill is the end of a container's run because of a probe.
type ProbeKill struct {
	Container string    `json:"container"`
	Probe     string    `json:"probe"`  // liveness, startup
	Result    string    `json:"result"` // "http :80/ -> 500"
	At        time.Time `json:"at"`     // when the container had ended
}

// Why returns the last scheduling result of a pod; ErrUnknown if nothing is remembered.
func (t *Timeline) Why(namespace, name string) (Why, error) {
	pod, owners, err := t.snapshot(namespace, name)
	if err != nil {
		return Why{}, err
	}
	return reason(pod, owners, time.Now()), nil
}

func reason(pod *record, owners []*record, now time.Time) Why {
	why := Why{Namespace: pod.subject.Namespace, Name: pod.subject.Name, PreemptedBy: pod.leavesFor}
	until := now
	marks := pod.marks()
	why.Partial = creation(marks).IsZero()
	why.KilledBy = killedBy(marks)
	why.MadeRoom = madeRoom(marks)
	for _, mk := range marks {
		switch d := mk.Detail.(type) {
		case *event.Queued:
			if why.Since.IsZero() {
				why.Since = mk.At
			}
		case *decisions.Attempt:
			if why.Since.IsZero() {
				why.Since = mk.At
			}
			why.Decision = d
			why.Tries = max(int(d.Attempt), why.Tries+1)
			why.Next = d.WaitsFor
			if d.Node != "" {
				why.Node = d.Node
				why.Next = ""
				until = mk.At.Add(mk.Took)
			}
		case *event.Request:
			if d.Code < http.StatusBadRequest {
				why.request(d)
			}
		case *event.Bind:
			if mk.Err != "" {
				why.Node = ""
				why.Next = "its backoff is over"
				until = now
			}
		case *event.Eviction:
			why.Eviction = d
			why.Left = max(0, d.Deadline.Sub(now))
			if d.Cancelled {
				why.Eviction = nil
				why.Left = 0
			}
		}
	}
	if !why.Since.IsZero() {
		why.For = until.Sub(why.Since)
	}
	if why.Ended != "" || why.PreemptedBy != "" {
		why.leaves(now)
	}
	why.behind(marks, owners)
	why.whole(pod.decided)
	return why
}

// killedBy finds the containers whose last run ended after a liveness or startup probe had failed for good.
func killedBy(marks []event.Event) []ProbeKill {
	failed := map[string]*event.Probe{} // by container, since its start
	ended := map[string]ProbeKill{}
	for _, m := range marks {
		switch d := m.Detail.(type) {
		case *event.Probe:
			if d.Kind != "readiness" {
				failed[d.Container] = d
			}
		case *event.Container:
			p := failed[d.Name]
			delete(failed, d.Name)
			if m.Step != event.StepContainerExited {
				continue
			}
			delete(ended, d.Name)
			if p != nil && !p.Success {
				ended[d.Name] = ProbeKill{
					Container: d.Name,
					Probe:     p.Kind,
					Result:    probeResult(p),
					At:        m.At.Add(m.Took),
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(ended), func(a, b ProbeKill) int {
		return cmp.Compare(a.Container, b.Container)
	})
}

// leaves drops an eviction that is still to come: the pod is gone, or leaves before.
func (w *Why) leaves(now time.Time) {
	if w.Eviction != nil && w.Eviction.Deadline.After(now) {
		w.Eviction = nil
		w.Left = 0
	}
}

// Vanished records that the pod does not exist any more.
func (w *Why) Vanished(now time.Time) {
	w.Gone = true
	w.leaves(now)
}

// madeRoom returns the preemptions of all attempts but the last, each once.
func madeRoom(marks []event.Event) []*decisions.Preemption {
	var all []*decisions.Preemption
	var last *decisions.Preemption
	same := func(p *decisions.Preemption) bool {
		return last != nil && p.Node == last.Node && slices.Equal(p.Victims, last.Victims)
	}
	for _, m := range marks {
		if d, ok := m.Detail.(*decisions.Attempt); ok {
			if last = d.Preemption; last != nil && !slices.ContainsFunc(all, same) {
				all = append(all, last)
			}
		}
	}
	return slices.DeleteFunc(all, same)
}

// request applies a successful request to the pod's binding and end.
func (w *Why) request(req *event.Request) {
	switch {
	case req.Subresource == "binding":
		w.BoundBy = req.User
	case w.Ended != "" || w.PreemptedBy != "": // the first one ended it
	case req.Status != nil && req.Status.To == string(corev1.PodFailed) && req.Status.Reason != "":
		w.Ended = because(req.Status)
	case req.Subresource == "eviction":
		w.Ended = "evicted by " + req.User
	case req.Verb == http.MethodDelete && req.Resource == "pods" && req.Subresource == "":
		w.Ended = "deleted by " + req.User
	}
}

// whole replaces the short decision by the complete one.
func (w *Why) whole(d *decided) {
	switch {
	case w.Decision == nil:
	case d == nil || d.about.Attempt != w.Decision.Attempt || d.about.Node != w.Decision.Node:
		w.Brief = true
	default:
		w.Decision = d.about
		w.Bind = d.bound
		w.BindTook = d.bind
	}
}

// RenderWhy prints the explanation, wrapped at width characters if possible; 0: not wrapped.
func RenderWhy(out io.Writer, why *Why, color bool, width int) {
	p := colors(color)
	if width <= 0 {
		width = math.MaxInt
	}
	var b strings.Builder
	t := table{&b, p, width}
	t.heading(why)
	if why.Fake != "" {
		t.text(red, "fake ", why.Fake)
	}
	for i, reason := range why.NotReady {
		t.text(red, []string{"not ready ", "          "}[min(i, 1)], reason)
	}
	if why.PreemptedBy != "" {
		t.text(red, "preempted ", "by pod "+why.PreemptedBy+", which has a higher priority and needed its place")
	}
	if why.Ended != "" {
		t.text(red, "ended ", why.Ended)
	}
	for i, reason := range why.Terminating {
		t.text(red, []string{"terminating ", "            "}[min(i, 1)], reason)
	}
	if why.Eviction != nil {
		t.eviction(why)
	}
	for i, command := range why.Help {
		t.text(green, []string{"next: ", "      "}[min(i, 1)], command)
	}
	if d := why.Decision; d != nil {
		if d.PodGroup != "" {
			t.text("", "group ", d.PodGroup)
		}
		t.scores(d)
		t.refusals(d)
		t.fixes(d)
		t.preemption(d.Preemption)
		for _, p := range why.MadeRoom {
			t.text("", "room was made on "+p.Node+": ", strings.Join(victims(p), ", ")+" had to go")
		}
		t.times(why)
		if why.Brief {
			t.text(dim, "", "this is a part: the whole decision is not remembered any more")
		}
	}
	_, _ = io.WriteString(out, b.String())
}

func tries(n int) string {
	if n == 1 {
		return "1 try"
	}
	return fmt.Sprintf("%d tries", n)
}

// about formats a long duration without fractions.
func about(d time.Duration) string {
	if d < time.Second {
		return Took(d)
	}
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return d.Round(time.Second).String()
}

func columns(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		for c, cell := range row {
			if c == len(widths) {
				widths = append(widths, 0)
			}
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
	}
	return widths
}
