// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"time"

	"keelson/lib/words"
	"keelson/timeline/story"
)

// componentColors has a color for each component of the cluster, so that its rows are found at a glance. Red and green
// are for what failed and what is ready.
var componentColors = map[string]string{
	"apiserver":   "\x1b[36m",
	"controllers": "\x1b[35m",
	"scheduler":   "\x1b[33m",
	"kubelet":     "\x1b[34m",
	"simulator":   "\x1b[34m",
	"runtime":     "\x1b[94m",
	"proxy":       "\x1b[95m",
	"dns":         "\x1b[96m",
}

// colorOf is the color of a component, whose name a node's may follow; empty: it has none.
func colorOf(who string) string {
	component, _, _ := strings.Cut(who, " ")
	return componentColors[component]
}

// The width of a bar with its gap.
const (
	maxBar = 20
	barGap = 2
)

// timeBars draws when steps ran within the whole of a story.
type timeBars struct {
	colors words.Colors
	total  time.Duration
	cells  int // 0: there is no room for bars
}

// none is the place of a bar that is not there.
func (t timeBars) none() string {
	if t.cells == 0 {
		return ""
	}
	return strings.Repeat(" ", t.cells+barGap)
}

// of is the bar of a step: at least a cell wide, and none for what came after the end.
func (t timeBars) of(step *story.Step) string {
	if t.cells == 0 || t.total <= 0 || step.At >= t.total || step.At < 0 {
		return t.none()
	}
	cells := time.Duration(t.cells)
	from := int(step.At * cells / t.total)
	to := int(((step.At+step.Took)*cells + t.total - 1) / t.total)
	to = min(max(to, from+1), t.cells)
	return strings.Repeat(" ", from) + t.colors.With(colorOf(step.Who), strings.Repeat("█", to-from)) +
		strings.Repeat(" ", t.cells-to+barGap)
}
