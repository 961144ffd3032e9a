// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"slices"
	"time"
)

// Gap is a time without a step, and what ended it.
type Gap struct {
	At   time.Duration `json:"at"`
	Took time.Duration `json:"took"`
	For  string        `json:"for"` // in words (timeline/text)
	// Next is the index of the step that ended it.
	Next int `json:"-"`
}

// Gaps that are shown: at least this long, and this part of the whole time.
const (
	minGap  = 50 * time.Millisecond
	gapPart = 10
	maxGaps = 3
)

// gaps are the longest times that no step covers, the longest first.
func gaps(steps []Step, spans []span, total time.Duration) []Gap {
	var out []Gap
	end := time.Duration(0)
	for _, s := range spans {
		if took := s.from - end; took >= minGap && took >= total/gapPart {
			i := slices.IndexFunc(steps, func(st Step) bool { return st.At >= s.from })
			if i >= 0 {
				out = append(out, Gap{At: end, Took: took, Next: i})
			}
		}
		end = s.to
	}
	slices.SortStableFunc(out, func(a, b Gap) int { return cmp.Compare(b.Took, a.Took) })
	return out[:min(len(out), maxGaps)]
}
