// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// columnsOf is the width of a terminal; 0: out is no terminal, or the width is unknown.
func columnsOf(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// isTerminal reports whether w is a terminal that understands escape sequences, for a person who wants them:
// https://no-color.org.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// hanging wraps a text that begins at a column, so that its further lines begin there, too.
func hanging(text string, column, width int) string {
	if width-column < 20 {
		return text // too narrow to be better
	}
	var out strings.Builder
	used := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case used == 0:
		case column+used+1+utf8.RuneCountInString(word) > width:
			out.WriteString("\n" + strings.Repeat(" ", column))
			used = 0
		default:
			out.WriteByte(' ')
			used++
		}
		out.WriteString(word)
		used += utf8.RuneCountInString(word)
	}
	return out.String()
}

// printTable prints rows below their titles. Where one of them is wider than the terminal, each row is a paragraph
// instead: its first cell, and the others with their titles. Width 0 is no terminal.
func printTable(out io.Writer, width int, titles []string, rows [][]string) error {
	var lines strings.Builder
	table := tabwriter.NewWriter(&lines, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{titles}, rows...) {
		_, _ = fmt.Fprintln(table, strings.Join(row, "\t")) // a strings.Builder does not fail
	}
	_ = table.Flush()
	text := lines.String()
	if width > 0 && widest(text) > width {
		text = paragraphs(width, titles, rows)
	}
	_, err := io.WriteString(out, text)
	return err
}

// widest is the length of the longest line.
func widest(text string) int {
	longest := 0
	for line := range strings.Lines(text) {
		longest = max(longest, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
	}
	return longest
}

// paragraphs formats each row of a table as lines of its own.
func paragraphs(width int, titles []string, rows [][]string) string {
	var out strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&out, "%s\n", row[0])
		for i, cell := range row[1:] {
			if cell == "" {
				continue
			}
			label := fmt.Sprintf("   %-10s ", strings.ToLower(titles[i+1]))
			fmt.Fprintf(&out, "%s%s\n", label, hanging(strings.ReplaceAll(cell, ",", ", "), len(label), width))
		}
	}
	return out.String()
}
