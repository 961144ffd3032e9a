// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"keelson/lib/words"
	"keelson/timeline/text"
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

// screen shows text to people. On a terminal no line is wider than it, unless a word is, and where the locale has ASCII
// only there are no other characters. What commands say of their own goes through a screen; what programs read does
// not: JSON, manifests, what kubectl prints.
type screen struct {
	out   io.Writer
	width int // 0: no terminal
	color bool
	ascii bool
}

// screenOf returns the screen that shows text on out, which may be one.
func screenOf(out io.Writer) *screen {
	if s, ok := out.(*screen); ok {
		return s
	}
	return &screen{out: out, width: columnsOf(out), color: isTerminal(out), ascii: asciiLocale()}
}

func (s Stdio) screen() *screen { return screenOf(s.Out) }

// asciiLocale reports whether the user has chosen a locale without other characters. No locale at all is no choice:
// containers have none.
func asciiLocale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := os.Getenv(name); value != "" {
			return value == "C" || value == "POSIX"
		}
	}
	return false
}

// Write shows whole lines.
func (s *screen) Write(b []byte) (int, error) {
	if _, err := io.WriteString(s.out, s.shown(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// shown is a text as the terminal can show it.
func (s *screen) shown(lines string) string {
	if s.ascii {
		lines = asciiOnly(lines)
	}
	if s.width <= 0 {
		return lines
	}
	var out strings.Builder
	for line := range strings.Lines(lines) {
		body := strings.TrimRight(line, "\n")
		if utf8.RuneCountInString(escapes.ReplaceAllString(body, "")) <= s.width {
			out.WriteString(line)
			continue
		}
		out.WriteString(strings.Join(text.Fold(body, s.width, below(body)), "\n") + line[len(body):])
	}
	return out.String()
}

// label is the first word of a line with a gap behind it, such as those of status and trace.
var label = regexp.MustCompile(`^ *[^ ]+ {2,}`)

// below is what the further lines of a wrapped line begin with: the place after its label, else its own indent and two
// columns.
func below(line string) string {
	const most = 14 // a wider one leaves too little room
	line = escapes.ReplaceAllString(line, "")
	if n := len(label.FindString(line)); n > 0 && n <= most {
		return strings.Repeat(" ", n)
	}
	return line[:len(line)-len(strings.TrimLeft(line, " "))] + "  "
}

// paint returns a text in a style, if the terminal has colors.
func (s *screen) paint(style, text string) string { return words.Colors(s.color).With(style, text) }

// inASCII has what our own texts use beyond ASCII.
var inASCII = strings.NewReplacer("µ", "u", "█", "#", "→", "->", "…", "...", "–", "-", "—", "-", "’", "'", "“", "\"",
	"”", "\"", "×", "x")

// asciiOnly replaces other characters than ASCII, those that we do not know by a question mark.
func asciiOnly(lines string) string {
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, inASCII.Replace(lines))
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
// instead: its first cell, and the others with their titles.
func printTable(out *screen, titles []string, rows [][]string) error {
	return printStyled(out, titles, rows, func(int) string { return "" })
}

// printStyled is printTable with a style for each row.
func printStyled(out *screen, titles []string, rows [][]string, style func(row int) string) error {
	var lines strings.Builder
	table := tabwriter.NewWriter(&lines, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{titles}, rows...) {
		_, _ = fmt.Fprintln(table, strings.Join(row, "\t")) // a strings.Builder does not fail
	}
	_ = table.Flush()
	if out.width > 0 && widest(lines.String()) > out.width {
		_, err := io.WriteString(out, paragraphs(out, titles, rows, style))
		return err
	}
	var shown strings.Builder
	row := -1 // the line of the titles
	for line := range strings.Lines(lines.String()) {
		of := words.Dim
		if row >= 0 {
			of = style(row)
		}
		shown.WriteString(out.paint(of, strings.TrimRight(line, "\n")) + "\n")
		row++
	}
	_, err := io.WriteString(out, shown.String())
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
func paragraphs(screen *screen, titles []string, rows [][]string, style func(row int) string) string {
	var out strings.Builder
	for n, row := range rows {
		fmt.Fprintf(&out, "%s\n", screen.paint(style(n), row[0]))
		for i, cell := range row[1:] {
			if cell == "" {
				continue
			}
			label := fmt.Sprintf("   %-10s ", strings.ToLower(titles[i+1]))
			fmt.Fprintf(&out, "%s%s\n", label, hanging(strings.ReplaceAll(cell, ",", ", "), len(label), screen.width))
		}
	}
	return out.String()
}
