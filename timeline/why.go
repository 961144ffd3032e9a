// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"io"
	"net/http"
	"slices"
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
	// Decision is the last attempt; absent when there was none yet.
	Decision *mark.Decision `json:"decision,omitempty"`
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
	w := Why{Namespace: pod.subject.Namespace, Name: pod.subject.Name}
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
			if d.Subresource == "binding" && d.Code < http.StatusBadRequest {
				w.BoundBy = d.User
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
	return w
}

// RenderWhy prints the reasons for people.
func RenderWhy(out io.Writer, w *Why, color bool) {
	p := paint(color)
	var b strings.Builder
	b.WriteString(p.with(bold, w.Namespace+"/"+w.Name) + "   ")
	d := w.Decision
	switch {
	case w.Reason != "":
		b.WriteString(w.Reason + "\n")
	case d == nil && w.Partial:
		b.WriteString("made before the server started: what the scheduler thought of it is not remembered\n")
	case d == nil:
		b.WriteString("Pending: the scheduler has not tried it yet\n")
	case w.Node == "":
		fmt.Fprintf(&b, "Pending for %s, %s", about(w.For), tries(w.Tries))
		if w.Next != "" {
			b.WriteString(", next when " + w.Next)
		}
		b.WriteString("\n")
	default:
		fmt.Fprintf(&b, "on %s   chosen after %s from %s, %d of which fit; filter %s, score %s\n",
			p.with(green, w.Node), Took(w.For), plural(d.Nodes, "node"), d.Fit, Took(d.Filter), Took(d.Score))
	}
	if w.Eviction != nil {
		eviction(&b, p, w)
	}
	if d != nil {
		scoreTable(&b, p, d)
		refusals(&b, p, d)
	}
	_, _ = io.WriteString(out, b.String())
}

// eviction prints when the pod must leave its node.
func eviction(b *strings.Builder, p paint, w *Why) {
	e := w.Eviction
	when := "now"
	if w.Left > 0 {
		when = fmt.Sprintf("in %s, at %s", about(w.Left), e.Deadline.Local().Format(time.TimeOnly))
	}
	tolerated := "which the pod does not tolerate"
	if e.Tolerated > 0 {
		tolerated = "which the pod tolerates for " + about(e.Tolerated)
	}
	fmt.Fprintf(b, "   %s %s: %s has the taint %s, %s\n", p.with(red, "evicted"), when, e.Node, e.Taint, tolerated)
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

// scoreTable prints each node's weighted scores, a column for each plugin.
func scoreTable(b *strings.Builder, p paint, d *mark.Decision) {
	var plugins []mark.PluginScore
	for _, s := range d.Scores {
		if len(s.Plugins) > len(plugins) {
			plugins = s.Plugins
		}
	}
	if len(plugins) == 0 {
		return
	}
	rows := [][]string{{"node", "total"}}
	for _, pl := range plugins {
		rows[0] = append(rows[0], fmt.Sprintf("%s x%d", pl.Plugin, pl.Weight))
	}
	for _, s := range d.Scores {
		row := []string{s.Node, fmt.Sprint(s.Total)}
		for _, pl := range plugins {
			i := slices.IndexFunc(s.Plugins, func(o mark.PluginScore) bool { return o.Plugin == pl.Plugin })
			if i < 0 {
				row = append(row, "")
			} else {
				row = append(row, fmt.Sprint(s.Plugins[i].Score*s.Plugins[i].Weight))
			}
		}
		rows = append(rows, row)
	}
	widths := columns(rows)
	for i, row := range rows {
		line := "   " + left(row[0], widths[0])
		for c := 1; c < len(row); c++ {
			line += "   " + right(row[c], widths[c])
		}
		switch {
		case i == 0:
			line = p.with(dim, line)
		case row[0] == d.Chosen:
			line += p.with(green, "   <- chosen")
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	if more := d.Fit - len(d.Scores); more > 0 {
		fmt.Fprintf(b, "   and %s with no higher scores\n", plural(more, "node"))
	}
	if d.Tied > 1 {
		fmt.Fprintf(b, "   %d nodes have the highest total: one of them was picked at random\n", d.Tied)
	}
	b.WriteString(p.with(dim, "   each plugin gives 0 to 100; xN: that counts N times; total is the sum") + "\n")
}

// refusals prints for each node the plugin, what is short, and what would help.
func refusals(b *strings.Builder, p paint, d *mark.Decision) {
	rows := make([][]string, 0, len(d.Rejected))
	for _, v := range d.Rejected {
		what := v.Short
		if what == "" {
			what = v.Reason
		}
		rows = append(rows, []string{v.Node, v.Plugin, what})
	}
	widths := columns(rows)
	for i, row := range rows {
		v := d.Rejected[i]
		line := "   " + left(row[0], widths[0]) + "   " + left(row[1], widths[1]) + "   " + row[2]
		if v.Nearest && v.Hint != "" {
			line = "   " + left(row[0], widths[0]) + "   " + left(row[1], widths[1]) + "   " + left(row[2], widths[2]) +
				p.with(green, "      <- nearest: "+v.Hint)
		}
		b.WriteString(line + "\n")
	}
	refused := 0
	for _, n := range d.RejectedBy {
		refused += n
	}
	if len(d.Rejected) < d.Nodes-d.Fit || len(rows) == 0 && refused > 0 {
		fmt.Fprintf(b, "   in all: %s\n", counted(d.RejectedBy))
	}
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
