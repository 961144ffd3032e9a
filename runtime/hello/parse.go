// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The shell's grammar, a small part of POSIX':
//
//	list     = and_or { (";" | "&" | newline) and_or }
//	and_or   = pipeline { ("&&" | "||") pipeline }
//	pipeline = ["!"] command { "|" command }
//	command  = simple | "{" list "}" | "(" list ")" | if | while | until | for, each with redirections
//
// Words are kept as written and expanded when they are used.

type kind int

const (
	kSimple kind = iota
	kList
	kAnd
	kOr
	kNot
	kPipe
	kGroup
	kSubshell
	kIf
	kWhile
	kUntil
	kFor
)

type node struct {
	kind   kind
	words  []string // kSimple: assignments and words; kFor: the words to go through
	redirs []redirect
	list   []*node // parts; kIf: condition, then, else (may be missing); kWhile, kUntil: condition, body
	name   string  // kFor: the variable
	bg     bool    // followed by &
	text   string  // as written, for a subshell
}

type redirect struct {
	fd     int
	op     string // "<" ">" ">>" ">&"
	target string
}

// errIncomplete means that more input may make it right: an interactive shell asks for it.
var errIncomplete = errors.New("unexpected end of input")

const maxDepth = 100

type token struct {
	text     string
	op       bool
	at, end  int
	fd       int  // of a redirection
	explicit bool // the redirection names its fd
}

type parser struct {
	src   string
	toks  []token
	pos   int
	depth int
}

func parse(src string) (*node, error) {
	toks, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{src: src, toks: toks}
	n, err := p.list()
	if err != nil {
		return nil, err
	}
	if p.pos < len(p.toks) {
		return nil, fmt.Errorf("syntax error near %q", p.toks[p.pos].text)
	}
	return n, nil
}

// lex splits src into operators and words.
func lex(src string) ([]token, error) {
	var out []token
	for i := 0; i < len(src); {
		switch c := src[i]; {
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '\\' && strings.HasPrefix(src[i:], "\\\n"):
			i += 2
		case c == '#':
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case strings.IndexByte("\n;&|()<>", c) >= 0:
			t := operator(src, i)
			out = append(out, t)
			i = t.end
		case (c == '1' || c == '2' || c == '0') && i+1 < len(src) && (src[i+1] == '>' || src[i+1] == '<'):
			t := operator(src, i+1)
			t.fd, t.explicit = int(c-'0'), true
			out = append(out, t)
			i = t.end
		default:
			end, err := wordEnd(src, i)
			if err != nil {
				return nil, err
			}
			out = append(out, token{text: src[i:end], at: i, end: end})
			i = end
		}
	}
	return out, nil
}

func operator(src string, i int) token {
	for _, op := range []string{"&&", "||", ">>", ">&"} {
		if strings.HasPrefix(src[i:], op) {
			return token{text: op, op: true, at: i, end: i + 2, fd: 1}
		}
	}
	t := token{text: src[i : i+1], op: true, at: i, end: i + 1}
	if t.text == ">" {
		t.fd = 1
	}
	return t
}

// wordEnd finds the end of the word that begins at i, past quotes and substitutions.
func wordEnd(src string, i int) (int, error) {
	for i < len(src) {
		switch c := src[i]; {
		case c == '\\':
			if i+1 >= len(src) {
				return 0, errIncomplete
			}
			i += 2
		case c == '\'':
			n := strings.IndexByte(src[i+1:], '\'')
			if n < 0 {
				return 0, errIncomplete
			}
			i += n + 2
		case c == '"', c == '`', c == '$' && i+1 < len(src) && (src[i+1] == '(' || src[i+1] == '{'):
			end, err := closing(src, i)
			if err != nil {
				return 0, err
			}
			i = end
		case strings.IndexByte(" \t\r\n;&|()<>", c) >= 0:
			return i, nil
		default:
			i++
		}
	}
	return i, nil
}

// closing returns the position after the quote or substitution that opens at i.
func closing(src string, i int) (int, error) {
	var stack []byte
	for i < len(src) {
		c, in := src[i], byte(0)
		if len(stack) > 0 {
			in = stack[len(stack)-1]
		}
		switch {
		case c == '\\':
			i++
		case c == in:
			stack = stack[:len(stack)-1]
			if len(stack) == 0 {
				return i + 1, nil
			}
		case c == '\'' && in != '"':
			n := strings.IndexByte(src[i+1:], '\'')
			if n < 0 {
				return 0, errIncomplete
			}
			i += n + 1
		case c == '"' || c == '`':
			stack = append(stack, c)
		case c == '$' && i+1 < len(src) && src[i+1] == '(':
			stack = append(stack, ')')
			i++
		case c == '$' && i+1 < len(src) && src[i+1] == '{':
			stack = append(stack, '}')
			i++
		case c == '(' && in == ')':
			stack = append(stack, ')')
		}
		i++
	}
	return 0, errIncomplete
}

func (p *parser) peek() (token, bool) {
	if p.pos < len(p.toks) {
		return p.toks[p.pos], true
	}
	return token{}, false
}

// word is true when the next token is this reserved word, operator is true for an operator.
func (p *parser) word(w ...string) bool {
	t, ok := p.peek()
	return ok && !t.op && slices.Contains(w, t.text)
}

func (p *parser) operator(w ...string) bool {
	t, ok := p.peek()
	return ok && t.op && slices.Contains(w, t.text)
}

func (p *parser) expect(w string) error {
	t, ok := p.peek()
	if !ok {
		return errIncomplete
	}
	if t.text != w {
		return fmt.Errorf("syntax error near %q, expected %q", t.text, w)
	}
	p.pos++
	return nil
}

func (p *parser) newlines() {
	for p.operator("\n") {
		p.pos++
	}
}

func (p *parser) list() (*node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, errors.New("nested too deeply")
	}
	defer func() { p.depth-- }()
	n := &node{kind: kList}
	for {
		p.newlines()
		if _, more := p.peek(); !more || p.operator(")") || p.word("}", "then", "else", "elif", "fi", "do", "done") {
			return n, nil
		}
		c, err := p.andOr()
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, c)
		switch {
		case p.operator("&"):
			c.bg = true
			p.pos++
		case p.operator(";", "\n"):
			p.pos++
		default:
			return n, nil
		}
	}
}

func (p *parser) andOr() (*node, error) {
	start := p.pos
	left, err := p.pipeline()
	for err == nil && p.operator("&&", "||") {
		k := kAnd
		if p.operator("||") {
			k = kOr
		}
		p.pos++
		p.newlines()
		var right *node
		right, err = p.pipeline()
		left = &node{kind: k, list: []*node{left, right}}
	}
	if err != nil {
		return nil, err
	}
	left.text = p.since(start)
	return left, nil
}

func (p *parser) since(start int) string { return p.src[p.toks[start].at:p.toks[p.pos-1].end] }

func (p *parser) pipeline() (*node, error) {
	not := p.word("!")
	if not {
		p.pos++
	}
	first, err := p.command()
	if err != nil {
		return nil, err
	}
	n := &node{kind: kPipe, list: []*node{first}}
	for p.operator("|") {
		p.pos++
		p.newlines()
		c, err := p.command()
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, c)
	}
	if len(n.list) == 1 {
		n = first
	}
	if not {
		n = &node{kind: kNot, list: []*node{n}}
	}
	return n, nil
}

func (p *parser) command() (*node, error) {
	if _, ok := p.peek(); !ok {
		return nil, errIncomplete
	}
	start := p.pos
	n, err := p.compound()
	if err == nil && n == nil {
		n, err = p.simple()
	} else if err == nil {
		for err == nil && p.operator("<", ">", ">>", ">&") {
			err = p.redirect(n)
		}
	}
	if err != nil {
		return nil, err
	}
	n.text = p.since(start)
	return n, nil
}

// compound parses a command that begins with a reserved word or parenthesis; nil when there is none.
func (p *parser) compound() (*node, error) {
	switch {
	case p.operator("("):
		return p.enclosed(kSubshell, ")")
	case p.word("{"):
		return p.enclosed(kGroup, "}")
	case p.word("if"):
		return p.conditional()
	case p.word("while"):
		return p.loop(kWhile)
	case p.word("until"):
		return p.loop(kUntil)
	case p.word("for"):
		return p.forLoop()
	}
	return nil, nil
}

func (p *parser) enclosed(k kind, end string) (*node, error) {
	p.pos++
	l, err := p.list()
	if err != nil {
		return nil, err
	}
	return &node{kind: k, list: []*node{l}}, p.expect(end)
}

// conditional parses from "if" or "elif" to "fi".
func (p *parser) conditional() (*node, error) {
	p.pos++
	cond, err := p.list()
	if err != nil {
		return nil, err
	}
	if err := p.expect("then"); err != nil {
		return nil, err
	}
	then, err := p.list()
	if err != nil {
		return nil, err
	}
	n := &node{kind: kIf, list: []*node{cond, then}}
	if p.word("elif") {
		if p.depth++; p.depth > maxDepth {
			return nil, errors.New("nested too deeply")
		}
		defer func() { p.depth-- }()
		other, err := p.conditional() // takes the fi
		n.list = append(n.list, other)
		return n, err
	}
	if p.word("else") {
		p.pos++
		other, err := p.list()
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, other)
	}
	return n, p.expect("fi")
}

func (p *parser) loop(k kind) (*node, error) {
	p.pos++
	cond, err := p.list()
	if err != nil {
		return nil, err
	}
	body, err := p.body()
	return &node{kind: k, list: []*node{cond, body}}, err
}

func (p *parser) body() (*node, error) {
	if err := p.expect("do"); err != nil {
		return nil, err
	}
	b, err := p.list()
	if err != nil {
		return nil, err
	}
	return b, p.expect("done")
}

func (p *parser) forLoop() (*node, error) {
	p.pos++
	t, ok := p.peek()
	if !ok {
		return nil, errIncomplete
	}
	if t.op || !isName(t.text) {
		return nil, fmt.Errorf("syntax error near %q", t.text)
	}
	n := &node{kind: kFor, name: t.text, words: []string{`"$@"`}}
	p.pos++
	p.newlines()
	if p.word("in") {
		p.pos++
		n.words = nil
		for {
			t, ok := p.peek()
			if !ok {
				return nil, errIncomplete
			}
			if t.op {
				break
			}
			n.words = append(n.words, t.text)
			p.pos++
		}
	}
	for p.operator(";", "\n") {
		p.pos++
	}
	b, err := p.body()
	n.list = []*node{b}
	return n, err
}

func (p *parser) simple() (*node, error) {
	n := &node{kind: kSimple}
	for {
		t, ok := p.peek()
		if ok && t.op && (t.text[0] == '<' || t.text[0] == '>') {
			if err := p.redirect(n); err != nil {
				return nil, err
			}
			continue
		}
		if !ok || t.op {
			break
		}
		n.words = append(n.words, t.text)
		p.pos++
	}
	if len(n.words)+len(n.redirs) == 0 {
		t, _ := p.peek()
		return nil, fmt.Errorf("syntax error near %q", t.text)
	}
	return n, nil
}

func (p *parser) redirect(n *node) error {
	op := p.toks[p.pos]
	p.pos++
	t, ok := p.peek()
	if !ok {
		return errIncomplete
	}
	if t.op {
		return fmt.Errorf("syntax error near %q", t.text)
	}
	p.pos++
	n.redirs = append(n.redirs, redirect{op.fd, op.text, t.text})
	return nil
}

func isName(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
