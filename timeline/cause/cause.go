// SPDX-License-Identifier: Apache-2.0

// Package cause says why an object that is no pod and no service does not do what it is for: a claim without a volume, a workload
// without pods, a namespace that does not go. Its functions are pure, from objects of the API to an Answer; `keelson why` reads the
// objects and prints it. They tell what somebody has recorded, and say what nobody has.
package cause

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer is what is known about one object.
type Answer struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// State is the object's own word for how it is, or ours where it has none.
	State string `json:"state"`
	// Why are the reasons, Next what would help, Unknown what cannot be said.
	Why     []string `json:"why,omitempty"`
	Next    []string `json:"next,omitempty"`
	Unknown []string `json:"unknown,omitempty"`
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

// Recorded adds the newest warning about the object, unless it has been said; empty: there is none.
func (a *Answer) Recorded(warning string) {
	_, message, _ := strings.Cut(warning, ": ")
	if warning != "" && !slices.ContainsFunc(a.Why, func(w string) bool { return strings.Contains(w, or(message, warning)) }) {
		a.because("its newest warning: %s", warning)
	}
}

// Unasked notes a kind of objects that could not be read.
func (a *Answer) Unasked(what string, err error) { a.cannot("%s could not be read: %v", what, err) }

// Render prints the answer for people, in lines of width characters where that is possible; 0: as long as they are.
func Render(out io.Writer, a *Answer, width int) {
	var b strings.Builder
	name := a.Name
	if a.Namespace != "" {
		name = a.Namespace + "/" + name
	}
	fmt.Fprintf(&b, "%s %s   %s\n", a.Kind, name, a.State)
	for _, part := range []struct {
		label string
		lines []string
	}{{"why", a.Why}, {"next", a.Next}, {"not known", a.Unknown}} {
		for i, line := range part.lines {
			label := part.label
			if i > 0 {
				label = ""
			}
			fold(&b, fmt.Sprintf("   %-10s ", label), line, width)
		}
	}
	_, _ = io.WriteString(out, b.String())
}

// fold writes words after a label, and below it where they do not fit.
func fold(b *strings.Builder, label, words string, width int) {
	if width <= 0 {
		width = math.MaxInt
	}
	line, empty := label, true
	for word := range strings.FieldsSeq(words) {
		word = visible(word)
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line, empty = strings.Repeat(" ", len(label)), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(line + "\n")
}

// visible leaves out what a terminal would obey: messages are anybody's who may write a status.
func visible(word string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, word)
}

// mostNamed is how many objects a sentence names.
const mostNamed = 5

// some names a few of them.
func some(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}

// condition is the one of that type; nil: nobody has written it.
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

// plural writes a number of things.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
