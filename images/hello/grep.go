// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

var grepSyntax = optionSyntax{
	letters: "ivqcnolhsEFwxe:",
	usage:   "grep [-E|-F] [-i] [-v] [-w] [-x] [-c|-l|-o|-q] [-n] [-h] PATTERN [FILE]...",
}

// grepping is one call of grep.
type grepping struct {
	pattern *regexp.Regexp
	o       options
	named   bool // lines get the name of their file
	found   bool
	out     *bufio.Writer
}

// grep prints the lines that match a basic regular expression (-E: an extended one, -F: a text). The exit code is 1 if
// none does, 2 after an error.
func grep(args []string, std stdio) int {
	opts, files, err := grepSyntax.parse(args)
	patterns := opts['e']
	if err == nil && len(patterns) == 0 {
		if len(files) == 0 {
			err = grepSyntax.wantUsage()
		} else {
			patterns = files[:1]
			files = files[1:]
		}
	}
	g := &grepping{o: opts, out: bufio.NewWriter(std.out)}
	if err == nil {
		g.pattern, err = grepPattern(opts, patterns)
	}
	if err != nil {
		complain(std, "grep", err)
		return 2
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	g.named = len(files) > 1 && !opts.has('h')
	code := 0
	for _, name := range files {
		code = max(code, each("grep", []string{name}, std, func(r io.Reader) error { return g.file(name, r) }))
	}
	switch {
	case code != 0:
		return 2
	case !g.found:
		return 1
	}
	return 0
}

// grepPattern is the expression for which lines are searched.
func grepPattern(opts options, patterns []string) (*regexp.Regexp, error) {
	var alternatives []string
	for _, p := range patterns {
		for line := range strings.SplitSeq(p, "\n") {
			switch {
			case opts.has('F'):
				line = regexp.QuoteMeta(line)
			case !opts.has('E'):
				line = extended(line)
			}
			alternatives = append(alternatives, "(?:"+line+")")
		}
	}
	text := "(?:" + strings.Join(alternatives, "|") + ")"
	if opts.has('w') {
		text = `\b` + text + `\b`
	}
	if opts.has('x') {
		text = "^" + text + "$"
	}
	if opts.has('i') {
		text = "(?i)" + text
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a regular expression", strings.Join(patterns, " "))
	}
	return re, nil
}

// extended makes an extended regular expression of a basic one, in which a backslash makes the characters ?+|(){}
// special.
func extended(basic string) string {
	const swapped = "?+|(){}"
	var out strings.Builder
	class := false // within [...]
	for i := 0; i < len(basic); i++ {
		c := basic[i]
		switch {
		case class:
			class = c != ']' || basic[i-1] == '[' || basic[i-1] == '^' && basic[i-2] == '['
			out.WriteByte(c)
		case c == '\\' && i+1 < len(basic):
			i++
			if !strings.ContainsRune(swapped, rune(basic[i])) {
				out.WriteByte('\\')
			}
			out.WriteByte(basic[i])
		case strings.IndexByte(swapped, c) >= 0, c == '*' && i == 0:
			out.WriteString("\\" + string(rune(c)))
		default:
			class = c == '['
			out.WriteByte(c)
		}
	}
	return out.String()
}

// file searches one file. Lines are written as they come, for pipes.
func (g *grepping) file(name string, r io.Reader) error {
	br := bufio.NewReader(r)
	number := 0
	count := 0
	for {
		line, err := br.ReadString('\n')
		if err != nil && line == "" {
			if notEOF(err) != nil {
				return err
			}
			break
		}
		number++
		line = strings.TrimSuffix(line, "\n")
		if g.pattern.MatchString(line) != g.o.has('v') {
			g.found = true
			if count++; g.o.has('q') || g.o.has('l') {
				break
			}
			if !g.o.has('c') {
				g.print(name, number, line)
			}
		}
		if br.Buffered() == 0 {
			if err := g.out.Flush(); err != nil {
				return err
			}
		}
	}
	switch {
	case g.o.has('q'):
	case g.o.has('l') && count > 0:
		fmt.Fprintln(g.out, name)
	case g.o.has('c') && !g.o.has('l'):
		if g.named {
			fmt.Fprint(g.out, name, ":")
		}
		fmt.Fprintln(g.out, count)
	}
	return g.out.Flush()
}

// print prints a line, or its parts that match.
func (g *grepping) print(name string, number int, line string) {
	prefix := ""
	if g.named {
		prefix = name + ":"
	}
	if g.o.has('n') {
		prefix += strconv.Itoa(number) + ":"
	}
	if !g.o.has('o') || g.o.has('v') {
		fmt.Fprintln(g.out, prefix+line)
		return
	}
	for _, part := range g.pattern.FindAllString(line, -1) {
		if part != "" {
			fmt.Fprintln(g.out, prefix+part)
		}
	}
}
