// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// expander turns one word as written into the fields it stands for.
type expander struct {
	sh     *sh
	fields []string
	cur    strings.Builder
	has    bool // cur is a field even when empty: it was quoted
	glob   bool // cur has an unquoted * ? [
}

// expand gives the fields of words: variables, command substitution, splitting, file names.
func (s *sh) expand(words []string) []string {
	var out []string
	for _, w := range words {
		e := &expander{sh: s}
		e.walk(w, false)
		e.flush()
		out = append(out, e.fields...)
	}
	return out
}

// expandOne gives one string: no splitting, no file names.
func (s *sh) expandOne(word string) string {
	e := &expander{sh: s}
	e.walk(word, true)
	return e.cur.String()
}

func (e *expander) flush() {
	if e.cur.Len() == 0 && !e.has {
		return
	}
	f := e.cur.String()
	e.cur.Reset()
	glob := e.glob
	e.has, e.glob = false, false
	if glob {
		if m, err := filepath.Glob(f); err == nil && len(m) > 0 {
			e.fields = append(e.fields, m...)
			return
		}
	}
	e.fields = append(e.fields, f)
}

// walk goes through a word; whole keeps it in one piece.
func (e *expander) walk(w string, whole bool) {
	if !whole && (w == "~" || strings.HasPrefix(w, "~/")) {
		e.cur.WriteString(or(os.Getenv("HOME"), "/"))
		w = w[1:]
	}
	for i := 0; i < len(w); {
		switch c := w[i]; c {
		case '\\':
			if i+1 < len(w) {
				if w[i+1] != '\n' {
					e.cur.WriteByte(w[i+1])
				}
				i++
			}
			i++
		case '\'':
			n := strings.IndexByte(w[i+1:], '\'')
			if n < 0 {
				n = len(w) - i - 1
			}
			e.cur.WriteString(w[i+1 : i+1+n])
			e.has = true
			i = min(i+n+2, len(w))
		case '"':
			end, err := closing(w, i)
			if err != nil {
				end = len(w)
			}
			e.has = true
			e.quoted(strings.TrimSuffix(w[i+1:end], `"`), whole)
			i = end
		case '$', '`':
			v, next := e.substitute(w, i)
			i = next
			e.unquoted(v, whole)
		default:
			if c == '*' || c == '?' || c == '[' {
				e.glob = true
			}
			e.cur.WriteByte(c)
			i++
		}
	}
}

func (e *expander) unquoted(v string, whole bool) {
	if whole {
		e.cur.WriteString(v)
		return
	}
	for i, r := range v {
		if r == ' ' || r == '\t' || r == '\n' {
			e.flush()
			continue
		}
		if r == '*' || r == '?' || r == '[' {
			e.glob = true
		}
		e.cur.WriteString(v[i : i+len(string(r))])
	}
}

func (e *expander) quoted(w string, whole bool) {
	if w == "$@" && !whole {
		for i, a := range e.sh.args[1:] {
			if i > 0 {
				e.has = true
				e.flush()
			}
			e.cur.WriteString(a)
		}
		e.has = len(e.sh.args) > 1
		return
	}
	for i := 0; i < len(w); {
		switch c := w[i]; {
		case c == '\\' && i+1 < len(w) && strings.IndexByte("$`\"\\\n", w[i+1]) >= 0:
			if w[i+1] != '\n' {
				e.cur.WriteByte(w[i+1])
			}
			i += 2
		case c == '$' || c == '`':
			v, next := e.substitute(w, i)
			e.cur.WriteString(v)
			i = next
		default:
			e.cur.WriteByte(c)
			i++
		}
	}
}

// substitute gives the value of what begins with $ or ` at i, and where it ends.
func (e *expander) substitute(w string, i int) (string, int) {
	if w[i] == '`' {
		end, err := closing(w, i)
		if err != nil {
			return w[i:], len(w)
		}
		return e.sh.capture(w[i+1 : end-1]), end
	}
	if i+1 >= len(w) {
		return "$", i + 1
	}
	switch c := w[i+1]; {
	case c == '(' || c == '{':
		end, err := closing(w, i)
		if err != nil {
			return w[i:], len(w)
		}
		inner := w[i+2 : end-1]
		if c == '{' {
			return e.sh.parameter(inner), end
		}
		if strings.HasPrefix(inner, "(") && strings.HasSuffix(inner, ")") {
			v := &expander{sh: e.sh}
			v.quoted(inner[1:len(inner)-1], true)
			return arithmetic(v.cur.String()), end
		}
		return e.sh.capture(inner), end
	case strings.IndexByte("?$#@*!0123456789", c) >= 0:
		return e.sh.variable(string(c)), i + 2
	}
	end := i + 1
	for end < len(w) && isName(w[i+1:end+1]) {
		end++
	}
	if end == i+1 {
		return "$", i + 1
	}
	return e.sh.variable(w[i+1 : end]), end
}

func (s *sh) variable(name string) string {
	switch name {
	case "?":
		return strconv.Itoa(s.status)
	case "$":
		return strconv.Itoa(os.Getpid())
	case "#":
		return strconv.Itoa(len(s.args) - 1)
	case "@", "*":
		return strings.Join(s.args[1:], " ")
	case "!":
		return strconv.Itoa(s.lastBg)
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n >= 0 && n < len(s.args) {
			return s.args[n]
		}
		return ""
	}
	return os.Getenv(name)
}

// parameter knows ${NAME}, ${NAME:-word}, ${NAME:=word}, ${NAME:+word} (also without the colon) and ${#NAME}.
func (s *sh) parameter(in string) string {
	if n, ok := strings.CutPrefix(in, "#"); ok && n != "" {
		return strconv.Itoa(len(s.variable(n)))
	}
	i := strings.IndexAny(in, ":-=+")
	if i < 0 {
		return s.variable(in)
	}
	name, op := in[:i], strings.TrimPrefix(in[i:], ":")
	v := s.variable(name)
	if op == "" {
		return v
	}
	switch op[0] {
	case '-', '=':
		if v != "" {
			return v
		}
		v = s.expandOne(op[1:])
		if op[0] == '=' && isName(name) {
			_ = os.Setenv(name, v) // fails only for names that isName refuses
		}
		return v
	case '+':
		if v == "" {
			return ""
		}
		return s.expandOne(op[1:])
	}
	return v
}

// arithmetic knows + - * / % over integers and variables' names, from left to right with the usual precedence.
func arithmetic(in string) string {
	f := strings.Fields(strings.NewReplacer("+", " + ", "-", " - ", "*", " * ", "/", " / ", "%", " % ").Replace(in))
	value := func(s string) int { return atoi(s, atoi(os.Getenv(s), 0)) }
	sum, term, sign := 0, 0, 1
	for i := 0; i < len(f); i++ {
		switch op := f[i]; {
		case op == "+", op == "-":
			sum, term, sign = sum+sign*term, 0, 1
			if op == "-" {
				sign = -1
			}
		case len(op) == 1 && strings.Contains("*/%", op) && i+1 < len(f):
			i++
			r := value(f[i])
			switch {
			case op == "*":
				term *= r
			case r == 0:
				return "0"
			case op == "/":
				term /= r
			default:
				term %= r
			}
		default:
			term = value(op)
		}
	}
	return strconv.Itoa(sum + sign*term)
}
