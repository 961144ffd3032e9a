// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
)

var sedSyntax = optionSyntax{
	letters: "nErie:s",
	usage: "sed [-n] [-E] [-i] SCRIPT|-e SCRIPT... [FILE]...; " +
		"commands: s d p q = a i c y, with addresses N $ /RE/ and A,B",
}

// sedCommand is one command of a script.
type sedCommand struct {
	from, to *sedAddress // nil: every line; to nil: from alone
	inside   bool        // a range has begun
	not      bool        // "!" follows the addresses
	verb     byte
	text     string // of a, i and c

	pattern     *regexp.Regexp // of s
	replacement string         // as regexp.Expand takes it
	which       int            // of the matches of s; 0: the first; -1: all
	print       bool
	swap        map[rune]rune // of y
}

// sedAddress is a line's number, the last line, or the lines that match.
type sedAddress struct {
	line    int
	last    bool
	pattern *regexp.Regexp
}

// sed edits lines by a script: the commands that exercises use. There is no hold space and there are no branches.
func sed(args []string, std stdio) int {
	opts, files, err := sedSyntax.parse(args)
	scripts := opts['e']
	if err == nil && len(scripts) == 0 {
		if len(files) == 0 {
			err = sedSyntax.wantUsage()
		} else {
			scripts = files[:1]
			files = files[1:]
		}
	}
	var commands []*sedCommand
	if err == nil {
		commands, err = parseSed(strings.Join(scripts, "\n"), opts.has('E') || opts.has('r'))
	}
	if err != nil {
		return complain(std, "sed", err)
	}
	if !opts.has('i') {
		if len(files) == 0 {
			files = []string{"-"}
		}
		return each("sed", files, std, func(in io.Reader) error {
			return (&sedRun{commands: commands, quiet: opts.has('n')}).edit(in, std.out)
		})
	}
	return forEach("sed", files, std, func(name string) error {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var edited bytes.Buffer
		run := &sedRun{commands: commands, quiet: opts.has('n')}
		if err := run.edit(bytes.NewReader(content), &edited); err != nil {
			return err
		}
		return os.WriteFile(name, edited.Bytes(), 0o644)
	})
}

// sedRun edits one file.
type sedRun struct {
	commands []*sedCommand
	quiet    bool // -n
	number   int  // of the current line
	last     bool
}

func (r *sedRun) edit(in io.Reader, to io.Writer) error {
	reader := bufio.NewReader(in)
	out := bufio.NewWriter(to)
	for _, c := range r.commands {
		c.inside = false
	}
	line, err := reader.ReadString('\n')
	for line != "" || err == nil {
		if notEOF(err) != nil {
			return err
		}
		text := strings.TrimSuffix(line, "\n")
		next := ""
		nextErr := io.EOF
		if err == nil {
			next, nextErr = reader.ReadString('\n')
		}
		r.number++
		r.last = next == "" && nextErr != nil
		stop := r.line(text, out)
		if flushErr := out.Flush(); flushErr != nil || stop {
			return flushErr
		}
		line = next
		err = nextErr
		if r.last {
			break
		}
	}
	return nil
}

// line runs the script on one line; true ends the file. Errors of out are those of its Flush.
func (r *sedRun) line(text string, out *bufio.Writer) (stop bool) {
	after := ""
	for _, c := range r.commands {
		if c.selects(r.number, r.last, text) == c.not {
			continue
		}
		switch c.verb {
		case 'd':
			_, _ = out.WriteString(after)
			return false
		case 'p':
			_, _ = out.WriteString(text + "\n")
		case 'q':
			stop = true
		case '=':
			_, _ = out.WriteString(strconv.Itoa(r.number) + "\n")
		case 'a':
			after += c.text + "\n"
		case 'i':
			_, _ = out.WriteString(c.text + "\n")
		case 'c':
			if c.to == nil || !c.inside {
				_, _ = out.WriteString(c.text + "\n")
			}
			return false
		case 'y':
			text = strings.Map(func(letter rune) rune {
				if other, ok := c.swap[letter]; ok {
					return other
				}
				return letter
			}, text)
		case 's':
			changed, ok := c.substitute(text)
			text = changed
			if ok && c.print {
				_, _ = out.WriteString(text + "\n")
			}
		}
		if stop {
			break
		}
	}
	if !r.quiet {
		_, _ = out.WriteString(text + "\n")
	}
	_, _ = out.WriteString(after)
	return stop
}

func (a *sedAddress) matches(number int, last bool, text string) bool {
	switch {
	case a.pattern != nil:
		return a.pattern.MatchString(text)
	case a.last:
		return last
	}
	return number == a.line
}

// selects reports whether the addresses choose the line, and moves a range on.
func (c *sedCommand) selects(number int, last bool, text string) bool {
	switch {
	case c.from == nil:
		return true
	case c.to == nil:
		return c.from.matches(number, last, text)
	case c.inside:
		c.inside = !c.to.matches(number, last, text) && (c.to.line == 0 || number < c.to.line)
		return true
	case c.from.matches(number, last, text):
		c.inside = !last && (c.to.line == 0 || c.to.line > number)
		return true
	}
	return false
}

// substitute replaces the matches that c.which names.
func (c *sedCommand) substitute(text string) (changed string, ok bool) {
	var out []byte
	end := 0
	for i, match := range c.pattern.FindAllStringSubmatchIndex(text, -1) {
		if c.which > 0 && i != c.which-1 || c.which == 0 && i > 0 {
			continue
		}
		out = append(out, text[end:match[0]]...)
		out = c.pattern.ExpandString(out, c.replacement, text, match)
		end = match[1]
		ok = true
	}
	return string(append(out, text[end:]...)), ok
}

// sedParser reads a script.
type sedParser struct {
	rest     string
	extended bool
}

func parseSed(script string, extendedSyntax bool) ([]*sedCommand, error) {
	p := &sedParser{rest: script, extended: extendedSyntax}
	var commands []*sedCommand
	for {
		p.rest = strings.TrimLeft(p.rest, " \t\n;")
		if p.rest == "" {
			return commands, nil
		}
		c, err := p.command()
		if err != nil {
			return nil, err
		}
		commands = append(commands, c)
	}
}

func (p *sedParser) command() (*sedCommand, error) {
	c := &sedCommand{}
	var err error
	if c.from, err = p.address(); err != nil {
		return nil, err
	}
	if c.from != nil && strings.HasPrefix(p.rest, ",") {
		p.rest = p.rest[1:]
		if c.to, err = p.address(); err == nil && c.to == nil {
			err = errors.New("an address is missing after the comma")
		}
		if err != nil {
			return nil, err
		}
	}
	p.rest = strings.TrimLeft(p.rest, " \t")
	if strings.HasPrefix(p.rest, "!") {
		c.not = true
		p.rest = strings.TrimLeft(p.rest[1:], " \t")
	}
	if p.rest == "" {
		return nil, errors.New("a command is missing")
	}
	c.verb = p.rest[0]
	p.rest = p.rest[1:]
	switch c.verb {
	case 'd', 'p', 'q', '=':
	case 'a', 'i', 'c':
		line, rest, _ := strings.Cut(strings.TrimLeft(p.rest, " \t"), "\n")
		if line == `\` {
			line, rest, _ = strings.Cut(rest, "\n")
		}
		c.text = strings.TrimPrefix(line, `\`)
		p.rest = rest
		return c, nil
	case 's':
		err = p.substitution(c)
	case 'y':
		err = p.transliteration(c)
	default:
		return nil, fmt.Errorf("%q is not a command that this sed has; %s", string(c.verb), sedSyntax.usage)
	}
	p.rest = strings.TrimLeft(p.rest, " \t")
	if err == nil && p.rest != "" && !strings.ContainsAny(p.rest[:1], ";\n") {
		err = fmt.Errorf("%q does not belong to the command %q", p.rest, string(c.verb))
	}
	return c, err
}

func (p *sedParser) address() (*sedAddress, error) {
	switch {
	case p.rest == "":
		return nil, nil // no address is no error
	case p.rest[0] == '$':
		p.rest = p.rest[1:]
		return &sedAddress{last: true}, nil
	case p.rest[0] == '/':
		text, err := p.until('/')
		if err != nil {
			return nil, err
		}
		pattern, err := p.compile(text, "")
		return &sedAddress{pattern: pattern}, err
	}
	digits := 0
	for digits < len(p.rest) && p.rest[digits] >= '0' && p.rest[digits] <= '9' {
		digits++
	}
	if digits == 0 {
		return nil, nil // no address is no error
	}
	number := atoi(p.rest[:digits], 0)
	if number < 1 {
		return nil, errors.New("lines are numbered from 1")
	}
	p.rest = p.rest[digits:]
	return &sedAddress{line: number}, nil
}

// until takes the text between the first character of the rest and the next one like it, which a backslash hides.
func (p *sedParser) until(end byte) (string, error) {
	var text strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == end:
			p.rest = p.rest[i+1:]
			return text.String(), nil
		case c == '\\' && i+1 < len(p.rest):
			i++
			if p.rest[i] != end {
				text.WriteByte('\\')
			}
			text.WriteByte(p.rest[i])
		default:
			text.WriteByte(c)
		}
	}
	return "", fmt.Errorf("a closing %q is missing", string(end))
}

func (p *sedParser) compile(text, flags string) (*regexp.Regexp, error) {
	if !p.extended {
		text = extended(text)
	}
	re, err := regexp.Compile(flags + text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a regular expression", text)
	}
	return re, nil
}

// parts takes the two texts of s and y.
func (p *sedParser) parts() (first, second string, err error) {
	if p.rest == "" || p.rest[0] == '\n' || p.rest[0] == '\\' {
		return "", "", errors.New("a delimiter is missing, as in s/OLD/NEW/")
	}
	end := p.rest[0]
	if first, err = p.until(end); err != nil {
		return "", "", err
	}
	p.rest = string(end) + p.rest
	second, err = p.until(end)
	return first, second, err
}

func (p *sedParser) substitution(c *sedCommand) error {
	pattern, replacement, err := p.parts()
	if err != nil {
		return err
	}
	flags := ""
	for p.rest != "" && !strings.ContainsAny(p.rest[:1], " \t\n;}") {
		switch letter := p.rest[0]; {
		case letter == 'g':
			c.which = -1
		case letter == 'p':
			c.print = true
		case letter == 'i', letter == 'I':
			flags = "(?i)"
		case letter >= '1' && letter <= '9':
			c.which = int(letter - '0')
		default:
			return fmt.Errorf("flag %q of s is not known", string(letter))
		}
		p.rest = p.rest[1:]
	}
	c.replacement = expandable(replacement)
	c.pattern, err = p.compile(pattern, flags)
	return err
}

// expandable translates a replacement of sed, with & and \1, to one of package regexp, with ${0} and ${1}.
func expandable(replacement string) string {
	var out strings.Builder
	for i := 0; i < len(replacement); i++ {
		switch c := replacement[i]; {
		case c == '&':
			_, _ = out.WriteString("${0}")
		case c == '$':
			_, _ = out.WriteString("$$")
		case c == '\\' && i+1 < len(replacement):
			i++
			switch next := replacement[i]; {
			case next >= '0' && next <= '9':
				_, _ = out.WriteString("${" + string(rune(next)) + "}")
			case next == 'n':
				out.WriteByte('\n')
			case next == 't':
				out.WriteByte('\t')
			default:
				out.WriteByte(next)
			}
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

func (p *sedParser) transliteration(c *sedCommand) error {
	from, to, err := p.parts()
	if err != nil {
		return err
	}
	old := []rune(from)
	other := []rune(to)
	if len(old) != len(other) {
		return errors.New("the two texts of y have different lengths")
	}
	c.swap = map[rune]rune{}
	for i, letter := range old {
		c.swap[letter] = other[i]
	}
	return nil
}
