// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Gap is a time without a step, and what ended it.
type Gap struct {
	At   time.Duration `json:"at"`
	Took time.Duration `json:"took"`
	For  string        `json:"for"`
}

// Gaps that are told: at least this long, and this part of the whole time.
const (
	leastGap  = 50 * time.Millisecond
	gapPart   = 10
	mostGaps  = 3
	gapLetter = 120 // the longest text
)

// gaps are the longest times that no step covers, the longest first.
func gaps(steps []Step, spans []span, total time.Duration) []Gap {
	var out []Gap
	end := time.Duration(0)
	for _, s := range spans {
		if took := s.from - end; took >= leastGap && took >= total/gapPart {
			i := slices.IndexFunc(steps, func(st Step) bool { return st.At >= s.from })
			if i >= 0 {
				out = append(out, Gap{At: end, Took: took, For: waitedFor(steps[:i], &steps[i])})
			}
		}
		end = s.to
	}
	slices.SortStableFunc(out, func(a, b Gap) int { return cmp.Compare(b.Took, a.Took) })
	return out[:min(len(out), mostGaps)]
}

// waitedFor says what the pod waited for before a step.
func waitedFor(before []Step, next *Step) string {
	what, _, _ := strings.Cut(next.What, ";")
	what = strings.TrimSpace(what)
	clauses := strings.Split(next.What, "; ")
	restart := slices.IndexFunc(clauses, func(c string) bool { return strings.Contains(c, " (restart ") })
	switch {
	case restart >= 0:
		what = "the back-off after a failed run, then " + clauses[restart]
	case strings.HasPrefix(what, "queued again: "):
		what = "a change in the cluster that may help: " + strings.TrimPrefix(what, "queued again: ")
	case strings.HasPrefix(what, "try "):
		what = "the scheduler's next attempt, after a change in the cluster or its back-off"
	case strings.HasPrefix(next.Who, "kubelet") && strings.HasPrefix(what, "status written"):
		what = "the kubelet to have something to report"
	case next.Who == "apiserver" && !strings.Contains(what, " by system:"):
		what = "somebody to ask: " + what
	default:
		what = next.Who + ": " + what
	}
	if n := len(before); n > 0 && strings.HasPrefix(next.Who, "controllers") {
		what = "its turn in a controller's queue: " + what
	}
	if len(what) > gapLetter {
		what = strings.ToValidUTF8(what[:gapLetter], "") + "..."
	}
	return what
}

// gapLines are the lines about gaps below a story.
func (s *Story) gapLines() []string {
	out := make([]string, 0, len(s.Gaps))
	for _, g := range s.Gaps {
		out = append(out, fmt.Sprintf("   waited: %s, from %s on, for %s", Took(g.Took), ms(g.At), clean(g.For)))
	}
	return out
}
