// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

var trSyntax = optionSyntax{letters: "dscC", early: true, usage: "tr [-c] [-d] [-s] SET1 [SET2]"}

// byteClasses are the classes of the C locale.
var byteClasses = map[string]func(c byte) bool{
	"[:lower:]":  isLower,
	"[:upper:]":  isUpper,
	"[:digit:]":  isDigit,
	"[:alpha:]":  func(c byte) bool { return isLower(c) || isUpper(c) },
	"[:alnum:]":  func(c byte) bool { return isLower(c) || isUpper(c) || isDigit(c) },
	"[:blank:]":  func(c byte) bool { return c == ' ' || c == '\t' },
	"[:space:]":  func(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' },
	"[:print:]":  func(c byte) bool { return c >= ' ' && c < 0x7f },
	"[:graph:]":  func(c byte) bool { return c > ' ' && c < 0x7f },
	"[:cntrl:]":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"[:xdigit:]": func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
	"[:punct:]":  func(c byte) bool { return c > ' ' && c < 0x7f && !isLower(c) && !isUpper(c) && !isDigit(c) },
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// expandSet lists the bytes of a set: single ones, escapes, ranges and classes.
func expandSet(set string) ([]byte, error) {
	var out []byte
	for len(set) > 0 {
		if end := strings.Index(set, ":]"); strings.HasPrefix(set, "[:") && end > 0 {
			in, ok := byteClasses[set[:end+2]]
			if !ok {
				return nil, fmt.Errorf("%s is not a class of characters", set[:end+2])
			}
			for c := range 256 {
				if in(byte(c)) {
					out = append(out, byte(c))
				}
			}
			set = set[end+2:]
			continue
		}
		var from byte
		from, set = oneOf(set)
		if len(set) < 2 || set[0] != '-' {
			out = append(out, from)
			continue
		}
		to, rest := oneOf(set[1:])
		if to < from {
			return nil, fmt.Errorf("range %c-%c is reversed", from, to)
		}
		for c := int(from); c <= int(to); c++ {
			out = append(out, byte(c))
		}
		set = rest
	}
	return out, nil
}

// oneOf takes one character, which may be an escape, off a set that is not empty.
func oneOf(set string) (c byte, rest string) {
	if set[0] != '\\' || len(set) < 2 {
		return set[0], set[1:]
	}
	if i := strings.IndexByte("abfnrtv0", set[1]); i >= 0 {
		return "\a\b\f\n\r\t\v\x00"[i], set[2:]
	}
	return set[1], set[2:]
}

// translation says what happens to each byte.
type translation struct {
	drop    [256]bool
	to      [256]byte
	squeeze [256]bool // of what is written
}

func newTranslation(opts options, sets []string) (*translation, error) {
	d := opts.has('d')
	s := opts.has('s')
	least := 2
	most := 2
	switch {
	case d && !s:
		least = 1
		most = 1
	case s && !d:
		least = 1
	}
	if len(sets) < least || len(sets) > most {
		return nil, trSyntax.wantUsage()
	}
	t := &translation{}
	for c := range 256 {
		t.to[c] = byte(c)
	}
	first, err := expandSet(sets[0])
	if err != nil {
		return nil, err
	}
	if opts.has('c') || opts.has('C') {
		first = others(first)
	}
	last := first
	if len(sets) > 1 {
		if last, err = expandSet(sets[1]); err != nil {
			return nil, err
		}
		if len(last) == 0 {
			return nil, errors.New("the second set is empty")
		}
	}
	for i, c := range first {
		if d {
			t.drop[c] = true
		} else if len(sets) > 1 {
			t.to[c] = last[min(i, len(last)-1)] // the last one stands for those that are missing
		}
	}
	for _, c := range last {
		t.squeeze[c] = s
	}
	return t, nil
}

func others(set []byte) []byte {
	var in [256]bool
	for _, c := range set {
		in[c] = true
	}
	var out []byte
	for c := range 256 {
		if !in[c] {
			out = append(out, byte(c))
		}
	}
	return out
}

// tr translates, deletes (-d) or squeezes (-s) bytes of its input.
func tr(args []string, std stdio) int {
	o, sets, err := trSyntax.parse(args)
	var t *translation
	if err == nil {
		t, err = newTranslation(o, sets)
	}
	if err != nil {
		return complain(std, "tr", err)
	}
	buf := make([]byte, 32<<10)
	last := -1
	out := bufio.NewWriter(std.out)
	for {
		n, rerr := std.in.Read(buf)
		for _, c := range buf[:n] {
			if t.drop[c] {
				continue
			}
			if c = t.to[c]; t.squeeze[c] && int(c) == last {
				continue
			}
			last = int(c)
			if err := out.WriteByte(c); err != nil {
				return complain(std, "tr", err)
			}
		}
		if err := out.Flush(); err != nil { // the reader of a pipe sees lines as they come
			return complain(std, "tr", err)
		}
		if errors.Is(rerr, io.EOF) {
			return 0
		}
		if rerr != nil {
			return complain(std, "tr", rerr)
		}
	}
}
