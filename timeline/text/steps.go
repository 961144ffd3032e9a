// SPDX-License-Identifier: Apache-2.0

package text

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"keelson/lib/words"
	"keelson/timeline/story"
)

// handOff is the component and the explanation of a hand-off.
type handOff struct{ who, sentence string }

var handOffTexts = [story.HandOffs + 1]handOff{
	story.HandRequest: {
		"client -> API server",
		"Somebody asks for an object. The API server finds out who asks (authentication) and whether they " +
			"may (authorization), lets admission plugins change or refuse the object, fills in defaults and " +
			"validates it.",
	},
	story.HandStored: {
		"API server -> store",
		"The object is written, and is on disk before the client gets the answer. Each write has a number, its " +
			"revision. Nothing runs yet: the object says what is wanted.",
	},
	story.HandToController: {
		"store -> API server -> controller",
		"No client polls for changes: each controller has a watch open, and the API " +
			"server sends every change along it. A Deployment is turned into a ReplicaSet here first.",
	},
	story.HandCreate: {
		"controller -> API server",
		"The controller compares the pods that are wanted with those that are there, and asks for a " +
			"missing one: the second request, which is authenticated, authorized and admitted as the first.",
	},
	story.HandPodStored: {
		"API server -> store",
		"The pod is written. It has no node yet.",
	},
	story.HandToScheduler: {
		"store -> API server -> scheduler",
		"The scheduler watches pods too, and looks for those without a node.",
	},
	story.HandSchedule: {
		"scheduler",
		"It leaves out the nodes that the pod cannot run on (filter), gives the others points (score) and " +
			"takes the best; with one node too.",
	},
	story.HandBind: {
		"scheduler -> API server",
		"The scheduler starts nothing. It sends the node's name to the API server, in a binding: the third " +
			"request.",
	},
	story.HandBound: {
		"API server -> store",
		"The binding is written: the pod has a node, in spec.nodeName.",
	},
	story.HandToKubelet: {
		"store -> API server -> kubelet",
		"The kubelet watches the pods of its own node only. This pod is one of them now, so it gets an " +
			"event.",
	},
	story.HandRun: {
		"kubelet -> container runtime",
		"The kubelet mounts the volumes and has the container runtime make the sandbox with its network, " +
			"get the images, create and start the containers. Probes then find out whether they work.",
	},
	story.HandStatus: {
		"kubelet -> API server -> store",
		"The kubelet reports what became of the pod, as its status.",
	},
	story.HandToOthers: {
		"store -> API server -> all watchers",
		"All clients that watch the pod receive it: controllers count it, Services and names lead to it, " +
			"`kubectl get -w` shows it.",
	},
}

// staticRequest replaces the first hand-off of a static pod.
var staticRequest = handOff{"file -> kubelet", "A static pod: its manifest is a file on the node, which the kubelet " +
	"read. No API server, controller or scheduler was asked. " +
	"What the API shows is its image, a mirror pod."}

// stepLine is one line below a hand-off.
type stepLine struct {
	at         time.Duration
	timed      bool // whether at is known
	took       time.Duration
	who, what  string
	failed     bool
	reportedBy string
}

// stepLines groups the steps by hand-off; index 0 holds the others.
func stepLines(s *story.Story) [story.HandOffs + 1][]stepLine {
	var out [story.HandOffs + 1][]stepLine
	add := func(st *story.Step, timed bool, who, what string) {
		n := max(0, min(st.HandOff, story.HandOffs))
		out[n] = append(out[n], stepLine{st.At, timed, st.Took, clean(who), clean(what), st.Error != "", st.ReportedBy})
	}
	for i := range s.Steps {
		st := &s.Steps[i]
		if st.Watch != nil {
			add(st, true, whoSays(st), watch(st.Watch))
			for j := range st.Parts {
				p := &st.Parts[j]
				add(p, false, p.Who, "gets it, watching "+p.What)
			}
			continue
		}
		if len(st.Parts) == 0 || st.Parts[0].Who != st.Who {
			add(st, true, whoSays(st), st.What+fault(st))
		}
		for j := range st.Parts {
			p := &st.Parts[j]
			switch {
			case p.Who == st.Who:
				add(p, true, whoSays(p), p.What)
			case p.What == "":
				add(p, false, "", p.Who)
			default:
				add(p, false, p.Who, p.What)
			}
		}
	}
	return out
}

// absent explains why a hand-off has no steps. last is the last one with steps; bound says whether the pod's binding
// has a step.
func absent(s *story.Story, n, last int, static, scheduled, bound bool) string {
	switch {
	case static && n < story.HandRun:
		return "none: a static pod"
	case s.Partial && n < last:
		return "not remembered"
	case n == story.HandRun && s.Simulated:
		return "none: " + clean(s.Node) + " is a fake node, whose simulator runs nothing and only writes the status " +
			"of a pod that runs"
	case n > last:
		if s.Done {
			return "none"
		}
		if s.Waits != "" {
			return "not yet: " + clean(s.Waits)
		}
		return "not yet"
	case n >= story.HandToController && n <= story.HandPodStored && s.Owner == "":
		return "none: no controller made this pod, the first request did"
	case n >= story.HandToScheduler && n <= story.HandBound && !scheduled:
		return "none: its node was named when it was made, in spec.nodeName"
	case n == story.HandSchedule && bound && s.Dropped == 0:
		return "none: the scheduler did not bind it; the binding below was made by another client"
	}
	return "not remembered"
}

// RenderSteps prints a story as the thirteen hand-offs, each with an explanation for newcomers, wrapped at width if
// possible; 0: unknown.
func RenderSteps(out io.Writer, podStory *story.Story, color bool, width int) {
	p := words.Colors(color)
	var b strings.Builder
	heading(&b, p, podStory)
	if width <= 0 {
		width = longLine
	}
	all := stepLines(podStory)
	last := 0
	static := len(all[story.HandRequest]) > 0 && podStory.Static
	bound := len(all[story.HandBind]) > 0
	scheduled := bound || len(all[story.HandSchedule]) > 0
	wide := 0
	for n, list := range all {
		if len(list) > 0 && n > 0 {
			last = n
		}
		for _, d := range list {
			wide = max(wide, utf8.RuneCountInString(d.who))
		}
	}
	for n := 1; n <= story.HandOffs; n++ {
		if len(all[n]) == 0 {
			why := absent(podStory, n, last, static, scheduled, bound)
			to := n
			for to < story.HandOffs && len(all[to+1]) == 0 &&
				absent(podStory, to+1, last, static, scheduled, bound) == why {
				to++
			}
			noLines(&b, p, n, to, why, width)
			n = to
			continue
		}
		h := handOffTexts[n]
		switch {
		case n == story.HandRequest && static:
			h = staticRequest
		case n == story.HandToScheduler && !scheduled && !podStory.Partial && last >= story.HandToKubelet:
			h.sentence = "The scheduler watches pods too. This one has a node already, in spec.nodeName, and is left " +
				"alone."
		case n == story.HandToKubelet && podStory.Simulated:
			h.who = "store -> API server -> simulator"
			h.sentence = "A fake node has no kubelet: a simulator watches the pods of all fake nodes, and gets an " +
				"event."
		}
		b.WriteString(p.With(words.Bold, right(fmt.Sprint(n), 5)+"  "+h.who) + "\n")
		for _, line := range wrapWords(h.sentence, max(shortLine, width-7)) {
			b.WriteString("       " + line + "\n")
		}
		linesBelow(&b, p, all[n], wide, width)
	}
	if len(all[0]) > 0 {
		b.WriteString(p.With(words.Bold, right("then", 5)) + "\n")
		linesBelow(&b, p, all[0], wide, width)
	}
	footing(&b, podStory)
	_, _ = io.WriteString(out, b.String())
}

// noLines explains why the hand-offs between n and to have no steps.
func noLines(b *strings.Builder, p words.Colors, n, to int, why string, width int) {
	number := fmt.Sprint(n)
	if to > n {
		number += "-" + fmt.Sprint(to)
	}
	for i, line := range wrapWords(why, max(shortLine, width-7)) {
		if i > 0 {
			number = ""
		}
		b.WriteString(right(number, 5) + "  " + p.With(words.Dim, line) + "\n")
	}
}

func linesBelow(out *strings.Builder, p words.Colors, list []stepLine, wide, width int) {
	const gaps = 7 + 10 + 2 + 8 + 2 + 2
	const hang = 2 // the indent of a wrapped line
	for _, d := range list {
		at := ""
		if d.timed {
			at = ms(d.at)
		}
		for i, part := range broken(d.what, max(shortLine, width-gaps-hang-wide)) {
			switch {
			case d.failed:
				part = p.With(words.Red, part)
			case !d.timed:
				part = p.With(words.Dim, part)
			}
			if i == 0 {
				who := p.With(colorOf(d.who), d.who) + left("", wide-utf8.RuneCountInString(d.who))
				fmt.Fprintf(out, "       %s  %s  %s  %s\n", right(at, 10), right(Took(d.took), 8), who, part)
			} else {
				out.WriteString(strings.Repeat(" ", gaps+wide+hang) + part + "\n")
			}
		}
	}
}

// broken wraps a line between parts, else between words.
func broken(text string, limit int) []string {
	var out []string
	for _, line := range wrap(text, limit) {
		out = append(out, wrapWords(line, limit)...)
	}
	return out
}

// wrapWords wraps a text between words. A word that is wider than a line is broken, at one of its separators if it has
// one there.
func wrapWords(text string, limit int) []string {
	var lines []string
	line := ""
	for _, word := range amounts(strings.Fields(text)) {
		for utf8.RuneCountInString(word) > limit {
			if line != "" {
				lines = append(lines, line)
				line = ""
			}
			runes := []rune(word)
			cut := separated(runes, limit)
			lines = append(lines, string(runes[:cut]))
			word = string(runes[cut:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > limit:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// separated is where to break a long word, such as an image's name: after the last separator that fits into limit, but
// not so early that the line is mostly empty.
func separated(word []rune, limit int) int {
	for _, separators := range []string{"/@,;?&", "-:=_."} { // a version or an address stays whole if it can
		for cut := limit; cut > limit/2; cut-- {
			if strings.ContainsRune(separators, word[cut-1]) {
				return cut
			}
		}
	}
	return limit
}

// amounts joins numbers to their units, which stay on one line.
func amounts(list []string) []string {
	var out []string
	for _, word := range list {
		if last := len(out) - 1; last >= 0 && amount(out[last], word) {
			out[last] += " " + word
			continue
		}
		out = append(out, word)
	}
	return out
}

// amount reports whether two words are a number and its unit.
func amount(number, unit string) bool {
	units := []string{"µs", "ms", "s", "B", "KiB", "MiB", "GiB"}
	return number != "" && strings.Trim(number, "(0123456789.") == "" &&
		slices.Contains(units, strings.TrimRight(unit, ",;:)"))
}
