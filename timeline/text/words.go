// SPDX-License-Identifier: Apache-2.0

package text

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const shown = 4

func some(names []string) string {
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:shown-1], ", ") + fmt.Sprintf(" and %d more", len(names)-shown+1)
}

func counted(by map[string]int) string {
	parts := make([]string, 0, len(by))
	for reason, n := range by {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// Took formats a duration as the timeline does, with microseconds for small values.
func Took(wait time.Duration) string {
	switch {
	case wait < 0:
		return "-" + Took(-wait)
	case wait < 100*time.Microsecond:
		return fmt.Sprintf("%d µs", (wait + 500*time.Nanosecond).Microseconds())
	case wait < time.Second:
		return fmt.Sprintf("%.1f ms", float64(wait)/float64(time.Millisecond))
	case wait < time.Minute:
		return fmt.Sprintf("%.2f s", wait.Seconds())
	default:
		return wait.Round(time.Second).String()
	}
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
