// SPDX-License-Identifier: Apache-2.0

package text

import (
	"fmt"
	"io"
	"math"
	"strings"

	"keelson/lib/words"
	"keelson/timeline/story"
)

// FillWhy writes the words of what a ledger says of a pod.
func FillWhy(w *story.Why) {
	if w.BindFailed {
		w.Next = "its backoff is over"
	}
	if w.End != nil {
		w.Ended = end(w.End)
	}
	for i := range w.KilledBy {
		w.KilledBy[i].Result = probeResult(w.KilledBy[i].Failed)
	}
}

// end says how a pod ended, or who ends it.
func end(e *story.End) string {
	switch {
	case e.Failed != nil:
		return because(e.Failed)
	case e.Evicted:
		return "evicted by " + e.User
	case e.NamespaceUser != "":
		return fmt.Sprintf("deleted with its namespace, which %s has deleted", e.NamespaceUser)
	case e.WithNamespace():
		return "deleted with its namespace; who deleted that is not remembered"
	case !e.Collected():
		return "deleted by " + e.User + surplus(e.Surplus)
	case e.OwnerUser == "":
		return "deleted by the garbage collector, because its owner is gone"
	}
	return fmt.Sprintf("deleted with its %s %s, which %s has deleted", story.OwnerKinds[e.Owner.Resource], e.Owner.Name,
		e.OwnerUser)
}

// surplus says why a controller deletes a pod; empty: unknown.
func surplus(s *story.Surplus) string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf(", because %s %s wanted %d and had %d", story.OwnerKinds[s.Owner.Resource], s.Owner.Name,
		s.Wants, s.Has)
	if s.After != nil {
		text += fmt.Sprintf(" after %s %s %s by %s", s.After.Verb, s.Of.Resource, s.Of.Name, s.After.User)
	}
	return text
}

// RenderWhy prints the explanation, wrapped at width characters if possible; 0: not wrapped.
func RenderWhy(out io.Writer, why *story.Why, color bool, width int) {
	p := words.Colors(color)
	if width <= 0 {
		width = math.MaxInt
	}
	var b strings.Builder
	t := table{&b, p, width}
	t.heading(why)
	if why.Fake != "" {
		t.text(words.Red, "fake ", why.Fake)
	}
	for i, reason := range why.NotReady {
		t.text(words.Red, []string{"not ready ", "          "}[min(i, 1)], reason)
	}
	if why.PreemptedBy != "" {
		t.text(words.Red, "preempted ", "by pod "+why.PreemptedBy+", which has a higher priority and needed its place")
	}
	if why.Ended != "" {
		t.text(words.Red, "ended ", why.Ended)
	}
	for i, reason := range why.Terminating {
		t.text(words.Red, []string{"terminating ", "            "}[min(i, 1)], reason)
	}
	if why.Eviction != nil {
		t.eviction(why)
	}
	for i, command := range why.Help {
		t.text(words.Green, []string{"next: ", "      "}[min(i, 1)], command)
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
			t.text(words.Dim, "", "this is a part: the whole decision is not remembered any more")
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
