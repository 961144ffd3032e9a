// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// String formats the table in nft's syntax, with sets, chains and elements sorted.
func (t *Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", t.Name)
	for _, name := range slices.Sorted(maps.Keys(t.Sets)) {
		t.Sets[name].describe(&b, t.Elements[name])
	}
	for _, name := range slices.Sorted(maps.Keys(t.Chains)) {
		t.Chains[name].describe(&b)
	}
	b.WriteString("}\n")
	return b.String()
}

func (s Set) describe(out *strings.Builder, elements map[string]string) {
	word := "set"
	typ := names(s.Key)
	switch {
	case s.Verdicts:
		word = "map"
		typ = typ + " : verdict"
	case len(s.Data) > 0:
		word = "map"
		typ = typ + " : " + names(s.Data)
	}
	fmt.Fprintf(out, "  %s %s {\n    type %s\n", word, s.Name, typ)
	if s.Interval {
		out.WriteString("    flags interval\n")
	}
	if s.dynamic() {
		fmt.Fprintf(out, "    flags dynamic,timeout\n    timeout %s\n", s.Timeout)
	}
	if s.Size > 0 {
		fmt.Fprintf(out, "    size %d\n", s.Size)
	}
	if len(elements) > 0 {
		out.WriteString("    elements = {\n")
		for _, k := range slices.Sorted(maps.Keys(elements)) {
			fmt.Fprintf(out, "      %s,\n", s.element(k, elements[k]))
		}
		out.WriteString("    }\n")
	}
	out.WriteString("  }\n")
}

func names(ts []Type) string {
	out := make([]string, len(ts))
	for i, t := range ts {
		out[i] = t.String()
	}
	return strings.Join(out, " . ")
}

func (s Set) element(key, value string) string {
	text := ""
	if w := s.width(); s.Interval && len(key) == 2*w {
		text = formatRanges(s.Key, key[:w], key[w:])
	} else {
		text = formatAll(s.Key, key)
	}
	switch {
	case s.Verdicts:
		return text + " : " + value
	case len(s.Data) > 0:
		return text + " : " + formatAll(s.Data, value)
	}
	return text
}

func formatRanges(ts []Type, from, to string) string {
	var out []string
	for _, t := range ts {
		n := t.info().bytes
		p := t.padded()
		one := t.format(from[:n])
		if from[:n] != to[:n] {
			one += "-" + t.format(to[:n])
		}
		out = append(out, one)
		from = from[p:]
		to = to[p:]
	}
	return strings.Join(out, " . ")
}

func (c Chain) describe(b *strings.Builder) {
	fmt.Fprintf(b, "  chain %s {\n", c.Name)
	if c.Hook != "" {
		fmt.Fprintf(b, "    type %s hook %s priority %d\n", c.Type, c.Hook, c.Priority)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "    %s\n", r)
	}
	b.WriteString("  }\n")
}
