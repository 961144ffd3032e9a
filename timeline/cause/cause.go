// SPDX-License-Identifier: Apache-2.0

// Package cause explains why an object other than a pod or a Service does not work: a claim without a volume, a
// workload without pods, a namespace that is not deleted. `keelson why` (cli) reads the objects and prints the answer.
// Its functions are pure, from API objects to an Answer; they never guess: what no component has recorded is listed as
// unknown.
package cause

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/lib/words"
)

// Answer is what is known about one object.
type Answer struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// State is the object's phase, or a word of ours if the kind has none.
	State string `json:"state"`
	// Why are the reasons, Next what would help, Unknown what cannot be determined.
	Why     []string `json:"why,omitempty"`
	Next    []string `json:"next,omitempty"`
	Unknown []string `json:"unknown,omitempty"`

	quoted []string // messages of others that Why has
}

func of(kind string, o metav1.Object) *Answer {
	return &Answer{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// because, do and cannot add a sentence to Why, Next and Unknown.
func (a *Answer) because(format string, args ...any) {
	a.Why = append(a.Why, fmt.Sprintf(format, args...))
}

func (a *Answer) do(format string, args ...any) {
	a.Next = append(a.Next, fmt.Sprintf(format, args...))
}

func (a *Answer) cannot(format string, args ...any) {
	a.Unknown = append(a.Unknown, fmt.Sprintf(format, args...))
}

// Message is what another program has written about an object: into a condition, or into an event.
type Message struct{ Reason, Text string }

// String returns the message after its reason; empty: there is none.
func (m Message) String() string { return strings.TrimSuffix(m.Reason+": "+m.Text, ": ") }

// quote is said for a sentence of the answer. Recorded does not repeat the message.
func (a *Answer) quote(reason, message string) string {
	a.quoted = append(a.quoted, strings.TrimSuffix(message, "."))
	return said(reason, message)
}

// Recorded adds the newest Warning event of the object, unless the answer quotes that message already.
func (a *Answer) Recorded(warning Message) {
	if warning != (Message{}) && !slices.Contains(a.quoted, strings.TrimSuffix(warning.Text, ".")) {
		a.because("its newest warning: %s", warning)
	}
}

// Unreadable records objects that could not be read.
func (a *Answer) Unreadable(what string, err error) { a.cannot("%s could not be read: %v", what, err) }

// Render prints the answer, wrapped at width characters if possible; 0: not wrapped.
func Render(out io.Writer, a *Answer, color bool, width int) {
	var b strings.Builder
	name := a.Name
	if a.Namespace != "" {
		name = a.Namespace + "/" + name
	}
	p := words.Colors(color)
	fmt.Fprintf(&b, "%s   %s\n", p.With(words.Bold, a.Kind+" "+name), a.State)
	for _, part := range []struct {
		label, style string
		lines        []string
	}{{"why", "", a.Why}, {"next", words.Green, a.Next}, {"not known", words.Dim, a.Unknown}} {
		for i, line := range part.lines {
			label := part.label
			if i > 0 {
				label = ""
			}
			for _, folded := range fold(fmt.Sprintf("   %-10s ", label), line, width) {
				b.WriteString(p.With(part.style, folded) + "\n")
			}
		}
	}
	_, _ = io.WriteString(out, b.String())
}

// fold is a text after a label, wrapped below the label.
func fold(label, text string, width int) []string {
	var lines []string
	if width <= 0 {
		width = math.MaxInt
	}
	line := label
	empty := true
	for word := range strings.FieldsSeq(text) {
		word = visible(word)
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = strings.Repeat(" ", len(label))
			empty = true
		}
		if !empty {
			line += " "
		}
		line = line + word
		empty = false
	}
	return append(lines, line)
}

// visible removes terminal control characters: anyone with the right to write a status may have put them there.
func visible(word string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, word)
}

// mostNamed limits the objects named in a sentence.
const mostNamed = 5

// some names the first few of them.
func some(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}

// condition returns the condition of a type; nil: none.
func condition(all []metav1.Condition, kind string) *metav1.Condition {
	for i := range all {
		if all[i].Type == kind {
			return &all[i]
		}
	}
	return nil
}

// said joins a reason and a message.
func said(reason, message string) string {
	return strings.Trim(reason+": "+strings.TrimSuffix(message, "."), ": ")
}
