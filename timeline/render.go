// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ANSI sequences of a coloured rendering.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	reset = "\x1b[0m"
)

type paint bool

func (p paint) with(style, text string) string {
	if !p || style == "" || text == "" {
		return text
	}
	return style + text + reset
}

// How many characters of what was done go on one line, if it can be broken: where the width is not known, and at least.
const (
	longLine  = 130
	shortLine = 24
)

// Render prints a story for people, as lines with columns at, took, who, what, no wider than width if lines can be broken; 0: the width
// is not known. Write errors are the writer's business.
func Render(out io.Writer, s *Story, color bool, width int) {
	p := paint(color)
	var b strings.Builder
	heading(&b, p, s)
	wide := len("who")
	for _, st := range s.Steps {
		wide = max(wide, utf8.RuneCountInString(whoSays(&st)))
	}
	limit := longLine
	if width > 0 {
		const gaps = 9 + 2 + 9 + 3 + 2 + 2 // columns at and took, what is between them, and the indent of a broken line
		limit = max(shortLine, width-gaps-wide)
	}
	line := func(at, took, who, style string, whats ...string) {
		for i, what := range whats {
			if i > 0 {
				at, took, who, what = "", "", "", "  "+what
			}
			fmt.Fprintf(&b, "%s  %s   %s  %s\n", right(at, 9), right(took, 9), left(who, wide), p.with(style, what))
		}
	}
	line("at", "took", "who", "", "what")
	for _, st := range s.Steps {
		what := st.What
		if fault := plain(st.Error); fault != "" && !strings.Contains(what, fault) {
			what += ": " + fault
		}
		fold, style := wrap, ""
		if width > 0 {
			fold = broken
		}
		if st.Error != "" {
			style = red
		}
		line(ms(st.At), Took(st.Took), whoSays(&st), style, fold(clean(what), limit)...)
		for _, part := range stagesOf(&st) {
			whats := []string{part.What}
			if width > 0 {
				whats = broken(part.What, limit)
			}
			line("", Took(part.Took), part.Who, dim, whats...)
		}
	}
	if s.Waits != "" && !s.Done {
		for _, text := range Fold(indent+"waits: "+clean(s.Waits), cmp.Or(width, longLine), indent+"       ") {
			b.WriteString(text + "\n")
		}
	}
	footing(&b, s)
	_, _ = io.WriteString(out, b.String())
}

// heading names the pod, where it is, and how long it took.
func heading(b *strings.Builder, p paint, s *Story) {
	b.WriteString(p.with(bold, s.Namespace+"/"+s.Name) + "   ")
	if at := where(s); at != "" {
		b.WriteString(at + "   ")
	}
	if s.Partial {
		fmt.Fprintf(b, "made before this server started: steps are remembered from %s on", s.Start.Format("15:04:05.000"))
	} else {
		fmt.Fprintf(b, "created %s", s.Start.Format("15:04:05.000"))
	}
	if s.ReadyAfter > 0 && !s.Partial {
		b.WriteString(", " + p.with(green, "ready after "+Took(s.ReadyAfter)))
	}
	if s.ReachableAfter > 0 && !s.Partial {
		b.WriteString(", reachable after " + Took(s.ReachableAfter))
	}
	if s.Owner != "" {
		b.WriteString("      " + s.Owner)
		if s.OwnerRevision > 0 {
			fmt.Fprintf(b, " (rev %d)", s.OwnerRevision)
		}
	}
	b.WriteString("\n\n")
}

// footing says what is missing, whose word some steps are, and how much of the time is explained.
func footing(b *strings.Builder, s *Story) {
	if s.Dropped > 0 {
		fmt.Fprintf(b, "   %s in the middle are not remembered\n", plural(s.Dropped, "step"))
	}
	if s.DroppedEvents > 0 {
		fmt.Fprintf(b, "   %s later are not remembered\n", plural(s.DroppedEvents, "watch event"))
	}
	var nodes []string
	for _, st := range s.Steps {
		if st.ReportedBy != "" && !slices.Contains(nodes, st.ReportedBy) {
			nodes = append(nodes, st.ReportedBy)
		}
	}
	if len(nodes) > 0 {
		fmt.Fprintf(b, "   * as node %s reports it\n", strings.Join(nodes, ", "))
	}
	accounted := ms(s.Accounted)
	if s.Total < 10*time.Second {
		accounted = strings.TrimSuffix(accounted, " ms") // the unit of both
	}
	fmt.Fprintf(b, "   accounted for: %s of %s\n", accounted, ms(s.Total))
}

// whoSays is who did a step, with a star where only a node says so.
func whoSays(s *Step) string {
	if s.ReportedBy != "" {
		return clean(s.Who) + " *"
	}
	return clean(s.Who)
}

// stagesOf are what a request went through, each with who did it. What one component did is in its line already.
func stagesOf(st *Step) []Step {
	if strings.HasPrefix(st.What, eventPrefix) {
		return nil
	}
	var out []Step
	for _, part := range st.Parts {
		if part.Who == st.Who {
			return out
		}
		if part.What == "" {
			part.Who, part.What = "", part.Who
		}
		out = append(out, part)
	}
	return out
}

// clean takes from a text what would move a terminal's cursor or colour it: a node, an image or a program's output may have written it.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return ' '
		}
		return r
	}, text)
}

// wrap breaks a long line where one thing ends and the next begins.
func wrap(what string, limit int) []string {
	var lines []string
	for utf8.RuneCountInString(what) > limit {
		cut := -1
		for i := range what {
			if strings.HasPrefix(what[i:], "; ") && (cut < 0 || utf8.RuneCountInString(what[:i]) <= limit) {
				cut = i + 1
			}
		}
		if cut < 0 {
			break
		}
		lines = append(lines, what[:cut])
		what = what[cut+1:]
	}
	return append(lines, what)
}

func where(s *Story) string {
	if s.Node == "" || s.Phase == "" {
		return s.Phase + s.Node
	}
	return s.Phase + " on " + s.Node
}

// ms writes in milliseconds, so that numbers that belong together can be compared.
func ms(d time.Duration) string {
	if d >= 10*time.Second {
		return Took(d)
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func right(s string, width int) string {
	return strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0)) + s
}

func left(s string, width int) string {
	return s + strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
}
