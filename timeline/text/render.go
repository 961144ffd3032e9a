// SPDX-License-Identifier: Apache-2.0

package text

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"keelson/lib/words"
	"keelson/timeline/story"
)

// The width of the column "what", if a line can be wrapped: when the terminal width is unknown, and the minimum.
const (
	longLine  = 130
	shortLine = 24
)

// Render prints a story as lines with the columns at, took, who, what, wrapped at width if possible; 0: unknown. The
// writer must keep write errors itself.
func Render(out io.Writer, podStory *story.Story, color bool, width int) {
	p := words.Colors(color)
	var b strings.Builder
	heading(&b, p, podStory)
	wide := len("who")
	for _, st := range podStory.Steps {
		wide = max(wide, utf8.RuneCountInString(whoSays(&st)))
	}
	limit := longLine
	bars := timeBars{colors: p, total: podStory.Total}
	if width > 0 {
		const gaps = 9 + 2 + 9 + 3 + 2 + 2 // the columns at and took, the gaps, and the indent of a wrapped line
		limit = max(shortLine, width-gaps-wide)
		if cells := min(width/8, maxBar); limit-cells-barGap >= shortLine+4 {
			bars.cells = cells
			limit -= cells + barGap
		}
	}
	line := func(at, took, bar, who, style string, whats ...string) {
		for i, what := range whats {
			if i > 0 {
				at = ""
				took = ""
				bar = bars.none()
				who = left("", wide)
				what = "  " + what
			}
			fmt.Fprintf(&b, "%s  %s   %s%s  %s\n", right(at, 9), right(took, 9), bar, who, p.With(style, what))
		}
	}
	line("at", "took", bars.none(), left("who", wide), "", "what")
	for _, st := range podStory.Steps {
		what := st.What + fault(&st)
		fold := wrap
		style := ""
		if width > 0 {
			fold = broken
		}
		if st.Error != "" {
			style = words.Red
		}
		who := p.With(colorOf(st.Who), whoSays(&st)) + left("", wide-utf8.RuneCountInString(whoSays(&st)))
		line(ms(st.At), Took(st.Took), bars.of(&st), who, style, fold(clean(what), limit)...)
		for _, part := range foldIdle(stagesOf(&st)) {
			whats := []string{part.What}
			if width > 0 {
				whats = broken(part.What, limit)
			}
			line("", Took(part.Took), bars.none(), left(part.Who, wide), words.Dim, whats...)
		}
	}
	if podStory.Waits != "" {
		for _, text := range Fold(indent+"waits: "+clean(podStory.Waits), cmp.Or(width, longLine), indent+"       ") {
			b.WriteString(text + "\n")
		}
	}
	footing(&b, podStory)
	_, _ = io.WriteString(out, b.String())
}

// heading prints the pod, its node, and the time to Ready.
func heading(out *strings.Builder, p words.Colors, podStory *story.Story) {
	out.WriteString(p.With(words.Bold, podStory.Namespace+"/"+podStory.Name) + "   ")
	if at := where(podStory); at != "" {
		out.WriteString(at + "   ")
	}
	from := podStory.Start.Format("15:04:05.000")
	switch {
	case !podStory.Partial || podStory.JustMade():
		out.WriteString("created " + from)
	case podStory.MadeSince():
		fmt.Fprintf(out, "created %s: steps are remembered from %s on",
			podStory.Created.In(podStory.Start.Location()).Format(time.TimeOnly), from)
	default:
		fmt.Fprintf(out, "made before this server started: steps are remembered from %s on", from)
	}
	if podStory.ReadyAfter > 0 && !podStory.Partial {
		out.WriteString(", " + p.With(words.Green, "ready after "+Took(podStory.ReadyAfter)))
	}
	if podStory.ReachableAfter > 0 && !podStory.Partial {
		out.WriteString(", reachable after " + Took(podStory.ReachableAfter))
	}
	if podStory.Owner != "" {
		out.WriteString("      " + podStory.Owner)
		if podStory.OwnerRevision > 0 {
			fmt.Fprintf(out, " (rev %d)", podStory.OwnerRevision)
		}
	}
	out.WriteString("\n\n")
}

// footing prints what is missing, which steps only a node reported, and how much of the time is explained.
func footing(out *strings.Builder, podStory *story.Story) {
	if podStory.Dropped > 0 {
		fmt.Fprintf(out, "   %s in the middle are not remembered\n", words.Count(podStory.Dropped, "step"))
	}
	if podStory.DroppedEvents > 0 {
		fmt.Fprintf(out, "   %s later are not remembered\n", words.Count(podStory.DroppedEvents, "watch event"))
	}
	var nodes []string
	for _, st := range podStory.Steps {
		if st.ReportedBy != "" && !slices.Contains(nodes, st.ReportedBy) {
			nodes = append(nodes, st.ReportedBy)
		}
	}
	if len(nodes) > 0 {
		fmt.Fprintf(out, "   * as node %s reports it\n", strings.Join(nodes, ", "))
	}
	accounted := ms(podStory.Accounted)
	if podStory.Total < 10*time.Second {
		accounted = strings.TrimSuffix(accounted, " ms") // both have this unit
	}
	fmt.Fprintf(out, "   accounted for: %s of %s\n", accounted, ms(podStory.Total))
	for _, line := range gapLines(podStory) {
		out.WriteString(line + "\n")
	}
}

// whoSays is the component of a step, with a star if only a node reported it.
func whoSays(s *story.Step) string {
	if s.ReportedBy != "" {
		return clean(s.Who) + " *"
	}
	return clean(s.Who)
}

// fault is the error of a step, unless one of its parts says it.
func fault(st *story.Step) string {
	if st.Error == "" || slices.ContainsFunc(st.Parts, func(p story.Step) bool { return p.Error != "" }) {
		return ""
	}
	return ": " + plain(st.Error)
}

// stagesOf are the stages of a request with their components. A step of one component has its stages in its own line.
func stagesOf(st *story.Step) []story.Step {
	if st.Watch != nil {
		return nil
	}
	var out []story.Step
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

// foldIdle makes one line of the stages that have let a request pass, if all that could have refused it did. The store
// and what was slow or changed the request keep their lines.
func foldIdle(stages []story.Step) []story.Step {
	const judges = 3 // authn, authz and admission
	var out []story.Step
	for i := 0; i < len(stages); {
		run := i
		for run < len(stages) && stages[run].Idle {
			run++
		}
		if run-i < judges {
			out = append(out, stages[i])
			i++
			continue
		}
		all := story.Step{Who: "checks"}
		var names []string
		for _, stage := range stages[i:run] {
			all.Took += stage.Took
			names = append(names, stage.Who)
		}
		all.What = "passed " + strings.Join(names, ", ") + "; nothing changed"
		out = append(out, all)
		i = run
	}
	return out
}

// clean removes terminal control characters: the text may come from a node, an image or a program's output.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return ' '
		}
		return r
	}, text)
}

// wrap breaks a long line between parts.
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

func where(s *story.Story) string {
	if s.Node == "" || s.Phase == "" {
		return s.Phase + s.Node
	}
	return s.Phase + " on " + s.Node
}

// ms formats milliseconds, so that numbers in a column can be compared.
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
