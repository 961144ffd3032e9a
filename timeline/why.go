// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"keelson/lib/mark"
)

// Why is what the scheduler last thought of a pod.
type Why struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node is where the pod went; empty while it is pending.
	Node string `json:"node,omitempty"`
	// Since is when the scheduler first saw the pod, For how long it has been pending, or was.
	Since time.Time     `json:"since"`
	For   time.Duration `json:"for"`
	Tries int           `json:"tries"`
	// Next says what makes the scheduler try again.
	Next string `json:"next,omitempty"`
	// Reason is why no scheduler's decision explains where the pod is, or that it is nowhere; empty while one does.
	Reason string `json:"reason,omitempty"`
	// BoundBy is who wrote pods/binding.
	BoundBy string `json:"boundBy,omitempty"`
	// Partial: how the pod was made is not remembered, nor what the scheduler may have thought of it before.
	Partial bool `json:"partial,omitempty"`
	// Gone: the pod exists no more.
	Gone bool `json:"gone,omitempty"`
	// PreemptedBy is the pod, namespace/name, for which the scheduler deleted this one.
	PreemptedBy string `json:"preemptedBy,omitempty"`
	// Ended is how the pod ended, or who ends it, where that is known: "evicted by ann", "Evicted: The node was low on resource: memory".
	Ended string `json:"ended,omitempty"`
	// Decision is the last attempt; absent when there was none yet. Brief: it is not remembered in full any more.
	Decision *mark.Decision `json:"decision,omitempty"`
	Brief    bool           `json:"brief,omitempty"`
	// Bind is how the binding went, BindTook how long it took from Permit on.
	Bind     *mark.Bind    `json:"bind,omitempty"`
	BindTook time.Duration `json:"bindTook,omitempty"`
	// Eviction says when a taint of its node ends the pod; absent while none does. Left is how long until then.
	Eviction *mark.Eviction `json:"eviction,omitempty"`
	Left     time.Duration  `json:"left,omitempty"`
}

// Why tells what the scheduler thought of a pod; ErrUnknown if nothing is remembered.
func (t *Timeline) Why(namespace, name string) (Why, error) {
	pod, _, err := t.snapshot(namespace, name)
	if err != nil {
		return Why{}, err
	}
	return reason(pod, time.Now()), nil
}

func reason(pod *record, now time.Time) Why {
	w := Why{Namespace: pod.subject.Namespace, Name: pod.subject.Name, PreemptedBy: pod.leavesFor}
	until := now
	marks := pod.marks()
	w.Partial = creation(marks).IsZero()
	for _, m := range marks {
		switch d := m.Detail.(type) {
		case *mark.Queued:
			if w.Since.IsZero() {
				w.Since = m.At
			}
		case *mark.Decision:
			if w.Since.IsZero() {
				w.Since = m.At
			}
			w.Decision, w.Tries, w.Next = d, max(d.Attempt, w.Tries+1), d.Waits
			if d.Chosen != "" {
				w.Node, w.Next, until = d.Chosen, "", m.At.Add(m.Took)
			}
		case *mark.Request:
			if d.Code < http.StatusBadRequest {
				w.request(d)
			}
		case *mark.Bind:
			if m.Err != "" {
				w.Node, w.Next, until = "", "its backoff is over", now
			}
		case *mark.Eviction:
			w.Eviction, w.Left = d, max(0, d.Deadline.Sub(now))
			if d.Cancelled {
				w.Eviction, w.Left = nil, 0
			}
		}
	}
	if !w.Since.IsZero() {
		w.For = until.Sub(w.Since)
	}
	w.whole(pod.decided)
	return w
}

// becameFailed is how a request's change says that a pod failed for a reason, which follows.
const becameFailed = "-> Failed ("

// request takes what a request that was granted says of the pod's binding and end.
func (w *Why) request(d *mark.Request) {
	switch {
	case d.Subresource == "binding":
		w.BoundBy = d.User
	case w.Ended != "" || w.PreemptedBy != "": // who ended it first
	case strings.Contains(d.Change, becameFailed):
		_, why, _ := strings.Cut(d.Change, becameFailed)
		w.Ended = why[:max(0, strings.LastIndexByte(why, ')'))]
	case d.Subresource == "eviction":
		w.Ended = "evicted by " + d.User
	case d.Verb == http.MethodDelete && d.Resource == "pods" && d.Subresource == "":
		w.Ended = "deleted by " + d.User
	}
}

// whole puts the whole decision in place of the brief one.
func (w *Why) whole(d *decided) {
	switch {
	case w.Decision == nil:
	case d == nil || d.about.Attempt != w.Decision.Attempt || d.about.Chosen != w.Decision.Chosen:
		w.Brief = true
	default:
		w.Decision, w.Bind, w.BindTook = d.about, d.bound, d.bind
	}
}

// RenderWhy prints the reasons for people, in lines of width characters where that is possible; 0: as long as they are.
func RenderWhy(out io.Writer, w *Why, color bool, width int) {
	p := paint(color)
	if width <= 0 {
		width = math.MaxInt
	}
	var b strings.Builder
	t := table{&b, p, width}
	t.heading(w)
	if w.PreemptedBy != "" {
		t.text(red, "preempted ", "by pod "+w.PreemptedBy+", which has a higher priority and needed its place")
	}
	if w.Ended != "" {
		t.text(red, "ended ", w.Ended)
	}
	if w.Eviction != nil {
		t.eviction(w)
	}
	if d := w.Decision; d != nil {
		if d.PodGroup != "" {
			t.text("", "group ", d.PodGroup)
		}
		t.scores(d)
		t.refusals(d)
		t.fixes(d)
		t.preemption(d.Preemption)
		t.times(w)
		if w.Brief {
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

// about writes a long duration without fractions.
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
