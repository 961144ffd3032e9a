// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "wrap the lines of the documents")

// maxColumns is the length of a line of a document.
const maxColumns = 120

var (
	listItem = regexp.MustCompile(`^\s*(?:[-*]|\d+\.)\s+`)
	// A line that begins with one of these words would be a list item, a heading or a quotation.
	lineMarker = regexp.MustCompile(`^(?:[-*+>]|#+|\d+[.)])$`)
)

// TestLines: lines of the documents have at most 120 characters. Left out are rows of tables, which Markdown cannot
// break, what is between fences (commands, and what a terminal shows), decisions, and the tables of changes. With
// -update it wraps the paragraphs that are too wide.
func TestLines(t *testing.T) {
	for _, doc := range append(documents(t), "docs/style.md") {
		if strings.HasPrefix(doc, "docs/decisions/") || strings.HasPrefix(doc, "docs/changes-") {
			continue
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		wrapped := wrapDocument(string(text))
		if wrapped == string(text) {
			continue
		}
		if !*update {
			t.Errorf("%s has lines of more than %d characters: go test . -run TestLines -update wraps them", doc, maxColumns)
			continue
		}
		if err := os.WriteFile(doc, []byte(wrapped), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// wrapDocument wraps each paragraph and list item that has a line of more than maxColumns.
func wrapDocument(text string) string {
	lines := strings.Split(text, "\n")
	var out []string
	fenced := false
	for len(lines) > 0 {
		line := lines[0]
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || !isProse(line) {
			out = append(out, line)
			lines = lines[1:]
			continue
		}
		end := 1
		for end < len(lines) && isProse(lines[end]) && !listItem.MatchString(lines[end]) {
			end++
		}
		out = append(out, wrapParagraph(lines[:end])...)
		lines = lines[end:]
	}
	return strings.Join(out, "\n")
}

// isProse reports whether a line belongs to a paragraph or a list item.
func isProse(line string) bool {
	trimmed := strings.TrimSpace(line)
	return trimmed != "" && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") &&
		!strings.HasPrefix(trimmed, "```")
}

// wrapParagraph returns the lines of a paragraph as they are if none is too long.
func wrapParagraph(lines []string) []string {
	if !slices.ContainsFunc(lines, func(line string) bool { return utf8.RuneCountInString(line) > maxColumns }) {
		return lines
	}
	first := listItem.FindString(lines[0])
	if first == "" {
		first = lines[0][:len(lines[0])-len(strings.TrimLeft(lines[0], " "))]
	}
	words := docWords(strings.TrimPrefix(strings.Join(lines, " "), first))
	indent := strings.Repeat(" ", len(first))
	out := []string{first + words[0]}
	for _, word := range words[1:] {
		last := len(out) - 1
		if utf8.RuneCountInString(out[last])+1+utf8.RuneCountInString(word) > maxColumns {
			out = append(out, indent+word)
			continue
		}
		out[last] += " " + word
	}
	return out
}

// docWords splits a text at blanks, but for those in code spans and those before a word that would mean something else
// at the beginning of a line.
func docWords(text string) []string {
	var words []string
	glue := false
	for word := range strings.FieldsSeq(text) {
		if n := len(words); n > 0 && (glue || lineMarker.MatchString(word)) {
			words[n-1] += " " + word
		} else {
			words = append(words, word)
		}
		if strings.Count(word, "`")%2 == 1 {
			glue = !glue
		}
	}
	return words
}

// TestWrapDocument: only what is too wide changes, and what Markdown means stays.
func TestWrapDocument(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 30)) // 149 characters
	line := strings.TrimSpace(strings.Repeat("word ", 24)) // 119
	rest := strings.TrimSpace(strings.Repeat("word ", 6))
	for _, c := range []struct{ name, text, want string }{
		{"short lines stay", "a\nb\n", "a\nb\n"},
		{"a paragraph", long + "\n", line + "\n" + rest + "\n"},
		{"the rest joins the next line", long + "\nend\n", line + "\n" + rest + " end\n"},
		{
			"a list item is indented", "- " + long + "\n- b\n",
			"- " + line[:len(line)-5] + "\n  word " + rest + "\n- b\n",
		},
		{"a table", "| " + long + " |\n", "| " + long + " |\n"},
		{"a heading", "# " + long + "\n", "# " + long + "\n"},
		{"between fences", "```\n" + long + "\n```\n", "```\n" + long + "\n```\n"},
		{
			"a code span", line[:len(line)-5] + " `a b c d e` end\n",
			line[:len(line)-5] + "\n`a b c d e` end\n",
		},
		{"no list by chance", line + " - " + rest + "\n", line[:len(line)-5] + "\nword - " + rest + "\n"},
	} {
		got := wrapDocument(c.text)
		if got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
		if again := wrapDocument(got); again != got {
			t.Errorf("%s: wrapped twice it is\n%s", c.name, again)
		}
	}
}
