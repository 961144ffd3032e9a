// SPDX-License-Identifier: Apache-2.0

// Package text puts what timeline/story concludes into words, and prints it at a width. Sentences about pods are here
// and nowhere else: one template for each fact (facts.go), for what a Why says (why.go), for what API objects say about
// a pod (around.go). It decides nothing, reads no clock and no object, and never takes a sentence apart.
package text

import (
	"fmt"
	"strings"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/timeline/story"
)

// Fill writes the words of a story: What of each step and For of each gap.
func Fill(s *story.Story) {
	for i := range s.Steps {
		step := &s.Steps[i]
		for j := range step.Parts {
			if part := &step.Parts[j]; part.Mark != nil {
				part.What = strings.Join(clauses(part), "; ")
			}
		}
		step.What = strings.Join(clauses(step), "; ")
	}
	for i := range s.Gaps {
		gap := &s.Gaps[i]
		gap.For = waitedFor(s.Steps, gap.Next)
	}
}

// clauses are the words of a step whose parts have theirs.
func clauses(step *story.Step) []string {
	switch {
	case step.Watch != nil:
		receivers := make([]string, 0, len(step.Parts))
		for _, p := range step.Parts {
			receivers = append(receivers, p.Who+" after "+Took(p.Took))
		}
		return []string{watch(step.Watch) + ": to " + some(receivers)}
	case step.Mark == nil:
		all := make([]string, 0, len(step.Parts))
		for _, p := range step.Parts {
			all = append(all, p.What)
		}
		return all
	}
	template := templates[step.Mark.Step]
	if template == nil {
		return []string{string(step.Mark.Step)}
	}
	return template(step)
}

// watch describes a change that is delivered to watchers.
func watch(w *story.Watch) string {
	return fmt.Sprintf("watch event, %s at revision %d", strings.TrimSuffix(w.Resource, "s"), w.Revision)
}

// maxGapText is the longest text about a gap, in bytes.
const maxGapText = 120

// waitedFor says what the pod waited for before step n.
func waitedFor(steps []story.Step, n int) string {
	next := &steps[n]
	first := next // the part that came first
	if next.Mark == nil && next.Watch == nil && len(next.Parts) > 0 {
		first = &next.Parts[0]
	}
	what := clauses(first)[0]
	text := next.Who + ": " + what
	if run := restarted(next.Parts); run != "" {
		text = "the back-off after a failed run, then " + run
	} else if first.Mark != nil {
		switch d := first.Mark.Detail.(type) {
		case *event.Queued:
			text = "a change in the cluster that may help: " + queueChange(d)
		case *decisions.Attempt:
			if first.Again {
				text = "the scheduler's next attempt, after a change in the cluster or its back-off"
			}
		case *event.Status:
			if first.Mark.Step == event.StepStatus && strings.HasPrefix(next.Who, "kubelet") {
				text = "the kubelet to have something to report"
			}
		case *event.Request:
			if !strings.HasPrefix(d.User, "system:") {
				text = "somebody to ask: " + what
			}
		}
	}
	if n > 0 && strings.HasPrefix(next.Who, "controllers") {
		text = "its turn in a controller's queue: " + text
	}
	if len(text) > maxGapText {
		text = strings.ToValidUTF8(text[:maxGapText], "") + "..."
	}
	return text
}

// restarted is the first part about a run of a container after another; empty: there is none.
func restarted(parts []story.Step) string {
	for _, p := range parts {
		if p.Mark == nil {
			continue
		}
		if d, ok := p.Mark.Detail.(*event.Container); ok && d.Restart > 0 {
			return p.What
		}
	}
	return ""
}

// gapLines are the lines about gaps below a story.
func gapLines(s *story.Story) []string {
	out := make([]string, 0, len(s.Gaps))
	for _, g := range s.Gaps {
		out = append(out, fmt.Sprintf("   waited: %s, from %s on, for %s", Took(g.Took), ms(g.At), clean(g.For)))
	}
	return out
}
