// SPDX-License-Identifier: Apache-2.0

package text

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"keelson/api/decisions"
	"keelson/lib/words"
	"keelson/timeline/story"
)

// indent precedes every line but the first.
const indent = "   "

// mostNamed is the number of refused nodes that are listed singly; more are grouped.
const mostNamed = 16

// table prints a decision.
type table struct {
	b     *strings.Builder
	p     words.Colors
	width int
}

// heading prints the pod and its result.
func (t table) heading(w *story.Why) {
	name := clean(w.Namespace + "/" + w.Name)
	for _, line := range Fold(t.p.With(words.Bold, name)+indent+t.fate(w), t.width, indent) {
		t.b.WriteString(line + "\n")
	}
}

// fate describes the pod's result in one sentence.
func (t table) fate(w *story.Why) string {
	decision := w.Decision
	switch {
	case w.Reason != "":
		return w.Reason
	case decision == nil && w.Partial:
		return "made before the server started: what the scheduler thought of it is not remembered"
	case decision == nil && w.Gone:
		return "it is gone; no scheduler had decided where it runs"
	case w.Gone && w.Node == "":
		return fmt.Sprintf("it is gone; no node had taken it after %s", tries(w.Tries))
	case decision == nil:
		return "Pending: the scheduler has not tried it yet"
	case w.Node == "":
		text := fmt.Sprintf("Pending for %s, %s", about(w.For), tries(w.Tries))
		if w.Next != "" {
			text += ", next when " + w.Next
		}
		return text
	}
	was := ""
	if w.Gone {
		was = "it is gone; it was "
	}
	return fmt.Sprintf("%son %s   chosen after %s from %s, %d of which %s; filter %s, score %s",
		was, t.p.With(words.Green, w.Node), Took(w.For), words.Count(decision.Nodes, "node"), decision.Feasible,
		words.Verb(decision.Feasible, "fits", "fit"), Took(decision.Filtering()), Took(decision.Scoring()))
}

// eviction prints when the pod must leave its node.
func (t table) eviction(w *story.Why) {
	e := w.Eviction
	at := "at " + e.Deadline.Local().Format(time.TimeOnly)
	when := "now"
	switch {
	case w.Gone:
		when = at
	case w.Left > 0:
		when = fmt.Sprintf("in %s, %s", about(w.Left), at)
	}
	tolerated := "which the pod does not tolerate"
	if e.Tolerated > 0 {
		tolerated = "which the pod tolerates for " + about(e.Tolerated)
	}
	t.text(words.Red, "evicted ", fmt.Sprintf("%s: %s has the taint %s, %s", when, e.Node, e.Taint, tolerated))
}

// escapes are the sequences that color a text.
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// visibleWidth is the number of characters of a text on a terminal.
func visibleWidth(text string) int { return utf8.RuneCountInString(escapes.ReplaceAllString(text, "")) }

// Fold wraps a line between words at width characters if possible, with below as the prefix of further lines. Spaces
// between words are kept, colors take no width, and a number keeps its unit.
func Fold(text string, width int, below string) []string {
	var lines []string
	line := ""
	for text != "" {
		word := strings.TrimLeft(text, " ")
		gap := text[:len(text)-len(word)]
		end := strings.IndexByte(word, ' ')
		if end < 0 {
			end = len(word)
		}
		word, text = word[:end], word[end:]
		if unit, _, _ := strings.Cut(strings.TrimPrefix(text, " "), " "); amount(word, unit) {
			word += " " + unit
			text = strings.TrimPrefix(text, " ")[len(unit):]
		}
		if strings.TrimSpace(line) != "" && visibleWidth(line+gap+word) > width {
			lines = append(lines, line)
			line = below
			gap = ""
		}
		line += gap + word
	}
	return append(lines, line)
}

// text prints words after a label, wrapped.
func (t table) text(style, label, words string) {
	line := indent + label
	below := indent + strings.Repeat(" ", utf8.RuneCountInString(label))
	for i, word := range amounts(strings.Fields(words)) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > t.width:
			t.b.WriteString(t.p.With(style, line) + "\n")
			line = below + word
		default:
			line += " " + word
		}
	}
	t.b.WriteString(t.p.With(style, line) + "\n")
}

// scores prints each plugin's scores of the best nodes, as many as fit in the width.
func (t table) scores(decision *decisions.Attempt) {
	if len(decision.Scores) == 0 || len(decision.Scores[0].Plugins) == 0 {
		return
	}
	rows := [][]string{{"plugin"}}
	for _, pl := range decision.Scores[0].Plugins {
		rows = append(rows, []string{pl.Plugin})
		for _, r := range decision.Rules {
			if r.Plugin == pl.Plugin {
				rows = append(rows, []string{"  " + r.Policy + " " + r.Field})
			}
		}
	}
	rows = append(rows, []string{"total"})
	used := 0
	shown := 0
	for _, s := range decision.Scores {
		column := scoreColumn(&s, decision)
		wide := 0
		for _, cell := range column {
			wide = max(wide, utf8.RuneCountInString(cell))
		}
		if shown == 0 {
			for _, w := range columns(rows) {
				used += len(indent) + w
			}
		}
		if used += len(indent) + wide; used > t.width && shown > 0 {
			break
		}
		for i := range rows {
			rows[i] = append(rows[i], column[i])
		}
		shown++
	}
	t.aligned(rows)
	rest := make([]string, 0, len(decision.Scores)-shown)
	for _, s := range decision.Scores[shown:] {
		rest = append(rest, fmt.Sprintf("%s %d", s.Node, s.Total))
	}
	if len(rest) > 0 {
		t.text("", "then ", strings.Join(rest, ", "))
	}
	if more := int(decision.Feasible) - len(decision.Scores); more > 0 {
		t.text("", "", "and "+words.Count(more, "node")+" with no higher scores")
	}
	if decision.Tied > 1 {
		t.text("", "", fmt.Sprintf("%d nodes have the highest total: one of them was picked at random", decision.Tied))
	}
	t.rules(decision)
	for i := range decision.Scores[0].Plugins {
		t.scoreFacts(decision.Scores[:min(shown, len(decision.Scores))], i)
	}
	t.text(words.Dim, "", "raw -> from 0 to 100, times the weight = score; the first node is the chosen one, the next "+
		"is the runner-up")
}

// scoreFacts prints what the n-th plugin's scores of some nodes were computed from, if that is known.
func (t table) scoreFacts(nodes []decisions.NodeScore, n int) {
	headed := false
	for _, node := range nodes {
		if n >= len(node.Plugins) || node.Plugins[n].Facts == nil {
			continue
		}
		score := &node.Plugins[n]
		lines := imageFacts(score)
		heading := "images count by size times the share of the nodes that have them"
		if of := score.Facts.Balance; of != nil {
			spread := "the standard deviation"
			if len(of.Resources) == 2 { // which is the same
				spread = "half the difference"
			}
			heading = "balance = 100 - " + spread + " of the parts in use; score = 75 + half of its change"
			lines = []string{balance(score)}
		}
		if !headed {
			t.text("", score.Plugin+": ", heading)
			headed = true
		}
		for _, line := range lines {
			t.text("", "  "+node.Node+" ", line)
		}
	}
}

// balance says how the score of NodeResourcesBalancedAllocation comes about.
func balance(score *decisions.PluginScore) string {
	of := score.Facts.Balance
	parts := make([]string, 0, len(of.Resources))
	for _, r := range of.Resources {
		parts = append(parts, fmt.Sprintf("%s %s%% -> %s%%", r.Resource, number(r.Without), number(r.With)))
	}
	return fmt.Sprintf("%s: balance %d -> %d, score %d", strings.Join(parts, ", "), of.Without, of.With, score.Raw)
}

// imageFacts says how the score of ImageLocality comes about.
func imageFacts(score *decisions.PluginScore) []string {
	if len(score.Facts.Images) == 0 {
		return []string{"no node has reported an image of the pod: 0"}
	}
	var parts []string
	containers := map[decisions.NodeImage]int{}
	for _, img := range score.Facts.Images {
		containers[img]++
	}
	for _, img := range score.Facts.Images {
		n := containers[img]
		delete(containers, img) // it is listed once
		text := img.Image + " is not there"
		if img.Bytes != 0 {
			text = fmt.Sprintf("%s %s on %d of %s", img.Image, words.Bytes(img.Bytes), img.Nodes,
				words.Count(img.Of, "node"))
		}
		switch {
		case n > 1:
			text += fmt.Sprintf(", for %d containers", n)
		case n == 0:
			continue
		}
		parts = append(parts, text)
	}
	line := fmt.Sprintf("%s: %d", strings.Join(parts, ", "), score.Raw)
	if score.Raw == 0 {
		line += ", because less than " + words.Bytes(score.Facts.MinImageBytes) + " in all does not count"
	}
	return []string{line}
}

// scoreColumn is a node's column: name, scores by plugin, total.
func scoreColumn(nodeScore *decisions.NodeScore, decision *decisions.Attempt) []string {
	name := nodeScore.Node
	if name == decision.Node {
		name += " (chosen)"
	}
	column := []string{name}
	for _, pl := range decision.Scores[0].Plugins {
		i := slices.IndexFunc(nodeScore.Plugins, func(o decisions.PluginScore) bool { return o.Plugin == pl.Plugin })
		cell := ""
		if i >= 0 {
			score := nodeScore.Plugins[i]
			cell = fmt.Sprintf("%d -> %d, x%d = %d", score.Raw, score.Normalized, score.Weight, score.Weighted)
		}
		column = append(column, cell)
		for i := range decision.Rules {
			if decision.Rules[i].Plugin == pl.Plugin {
				column = append(column, ruleCell(nodeScore, i, decision.Rules[i].Weight))
			}
		}
	}
	return append(column, fmt.Sprint(nodeScore.Total))
}

// ruleCell is the score of a rule for a node.
func ruleCell(s *decisions.NodeScore, rule int, weight int64) string {
	if rule >= len(s.Rules) {
		return ""
	}
	r := s.Rules[rule]
	if r.Failed {
		return "no value = 0"
	}
	return fmt.Sprintf("%s -> %d, x%d = %d", number(r.Raw), r.Normalized, weight, r.Weighted)
}

// number formats a value with up to six digits.
func number(value float64) string { return strconv.FormatFloat(value, 'g', 6, 64) }

// rules prints the rules whose scores are in the table.
func (t table) rules(d *decisions.Attempt) {
	for _, r := range d.Rules {
		t.text("", r.Policy+" "+r.Field+": ", r.Expression+" ("+r.From+")")
	}
}

// aligned prints rows, the first column left-aligned, the others right-aligned.
func (t table) aligned(rows [][]string) {
	widths := columns(rows)
	for i, row := range rows {
		line := indent + left(row[0], widths[0])
		for c := 1; c < len(row); c++ {
			line += indent + right(row[c], widths[c])
		}
		if line = strings.TrimRight(line, " "); i == 0 {
			line = t.p.With(words.Dim, line)
		}
		t.b.WriteString(line + "\n")
	}
}

// refusals prints for each node the first plugin that rejected it and what is missing; for many nodes in groups, with
// the nearest one.
func (t table) refusals(decision *decisions.Attempt) {
	var rows [][]string
	unfit := int(decision.Nodes - decision.Feasible)
	grouped := len(decision.RefusedBy) > 0 &&
		(len(decision.Refusals) > mostNamed || len(decision.Refusals) < unfit)
	if grouped {
		for _, g := range decision.RefusedBy {
			what := g.Reason
			if len(g.Names) > 0 {
				what += ": " + strings.Join(g.Names, ", ")
			}
			if int(g.Nodes) > len(g.Names) && len(g.Names) > 0 {
				what += "..."
			}
			rows = append(rows, []string{words.Count(g.Nodes, "node"), g.Plugin, what})
		}
	}
	for _, v := range decision.Refusals {
		if !grouped || v.Nearest {
			rows = append(rows, []string{v.Node, v.Plugin, cmp.Or(v.Shortage, v.Reason)})
		}
	}
	widths := columns(rows)
	for _, row := range rows {
		t.text("", left(row[0], widths[0])+indent+left(row[1], widths[1])+indent, row[2])
	}
	if decision.Node == "" && slices.ContainsFunc(decision.Refusals, func(v decisions.Refusal) bool {
		return v.Taint != nil && v.Taint.Key == fakeTaint && (!grouped || v.Nearest)
	}) {
		t.text("", "", fakeTaint+" is the taint of fake nodes (--fake-nodes), which run nothing: a pod that may run "+
			"there in name only tolerates it, by spec.tolerations: [{key: "+fakeTaint+", operator: Exists}]")
	}
	refused := 0
	for _, n := range decision.Reasons {
		refused += n
	}
	switch {
	case decision.Node == "" && decision.Nodes > 0 && len(rows)+refused == 0: // no decision was made
		t.text(words.Red, "", decision.Message)
	case grouped || len(decision.Refusals) >= unfit && (len(rows) > 0 || refused == 0):
	case len(rows) == 0 && len(decision.Reasons) == 1: // the pod itself was rejected before any node was checked
		for reason := range decision.Reasons {
			t.text("", "", "on any node: "+reason)
		}
	default:
		t.text("", "", "in all: "+counted(decision.Reasons))
	}
}

// fixes prints what would make the pod fit.
func (t table) fixes(d *decisions.Attempt) {
	for i, fix := range d.Fixes {
		label := "nearest: "
		if i > 0 {
			label = "     or: "
		}
		t.text(words.Green, label, fix)
	}
}

// preemption prints the victims and why these were chosen.
func (t table) preemption(m *decisions.Preemption) {
	if m == nil {
		return
	}
	t.text("", "makes room on "+m.Node+": ", strings.Join(victims(m), ", ")+" must go")
	var notes []string
	if m.Reprieved > 0 {
		notes = append(notes, words.Count(m.Reprieved, "less important pod")+" may stay")
	}
	if m.PDBViolations > 0 {
		notes = append(notes, words.Count(m.PDBViolations, "victim")+" against a disruption budget")
	}
	why := m.Why
	if m.RunnerUp != "" {
		why = fmt.Sprintf("of %s, %s and not %s: %s", words.Count(m.Candidates, "node"), m.Node, m.RunnerUp, m.Why)
	}
	t.text("", "", strings.Join(append(notes, why), "; "))
}

// victims names the pods that are preempted.
func victims(m *decisions.Preemption) []string {
	names := make([]string, 0, len(m.Victims)+1)
	for _, v := range m.Victims {
		names = append(names, fmt.Sprintf("%s/%s (priority %d)", v.Namespace, v.Name, v.Priority))
	}
	if more := int(m.Count) - len(m.Victims); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return names
}

// times prints the duration of each extension point.
func (t table) times(w *story.Why) {
	points := extensionPoints(w.Decision.ExtensionPoints, w.Bind, w.BindTook)
	if len(points) == 0 {
		return
	}
	parts := make([]string, len(points))
	for i, pt := range points {
		parts[i] = pt.Name + " " + Took(pt.Took.Duration)
	}
	t.text(words.Dim, "took: ", strings.Join(parts, ", "))
}
