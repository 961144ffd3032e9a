// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxSorted bounds the text that sort holds in memory.
const maxSorted = 256 << 20

var sortSyntax = optionSyntax{letters: "rnuk:t:", usage: "sort [-r] [-n] [-u] [-k FIELD] [-t SEPARATOR] [FILE]..."}

// order says how sort compares two lines.
type order struct {
	reverse, numeric, unique bool
	field                    int    // the key starts with this field, counted from 1; 0: the line
	sep                      string // empty: fields are separated by blanks
}

// sortLines implements sort.
func sortLines(args []string, std stdio) int {
	o, files, err := sortSyntax.parse(args)
	if err != nil {
		return complain(std, "sort", err)
	}
	by := order{
		reverse: o.has('r'),
		numeric: o.has('n'),
		unique:  o.has('u'),
		sep:     o.get('t', ""),
	}
	if key := o.get('k', ""); key != "" {
		by.numeric = by.numeric || strings.Contains(key, "n")
		by.reverse = by.reverse || strings.Contains(key, "r")
		from, _, _ := strings.Cut(strings.NewReplacer("n", "", "r", "").Replace(key), ",")
		if by.field, err = strconv.Atoi(from); err != nil || by.field < 1 {
			return complain(std, "sort", fmt.Errorf("key %q is not a number of a field", key))
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	var text bytes.Buffer
	code := each("sort", files, std, func(r io.Reader) error {
		_, err := io.Copy(&text, io.LimitReader(r, int64(maxSorted+1-text.Len())))
		if text.Len() > maxSorted {
			return fmt.Errorf("more than %d MiB", maxSorted>>20)
		}
		if n := text.Len(); err == nil && n > 0 && text.Bytes()[n-1] != '\n' {
			text.WriteByte('\n')
		}
		return err
	})
	if code != 0 {
		return 2
	}
	lines := strings.SplitAfter(text.String(), "\n")
	lines = lines[:len(lines)-1] // nothing follows the last line
	slices.SortStableFunc(lines, by.compare)
	if by.unique {
		lines = slices.CompactFunc(lines, func(a, b string) bool { return by.compareKeys(a, b) == 0 })
	}
	out := bufio.NewWriter(std.out)
	for _, l := range lines {
		if _, err := out.WriteString(l); err != nil {
			return complain(std, "sort", err)
		}
	}
	if err := out.Flush(); err != nil {
		return complain(std, "sort", err)
	}
	return 0
}

// compare compares two lines by key, then whole.
func (o order) compare(a, b string) int {
	c := o.compareKeys(a, b)
	if c == 0 && !o.unique {
		c = strings.Compare(a, b)
	}
	if o.reverse {
		return -c
	}
	return c
}

func (o order) compareKeys(a, b string) int {
	a = o.key(strings.TrimSuffix(a, "\n"))
	b = o.key(strings.TrimSuffix(b, "\n"))
	if o.numeric {
		return cmp.Compare(leadingNumber(a), leadingNumber(b))
	}
	return strings.Compare(a, b)
}

// key is the part of a line that is compared.
func (o order) key(line string) string {
	for range max(o.field-1, 0) {
		if o.sep != "" {
			_, line, _ = strings.Cut(line, o.sep)
			continue
		}
		line = strings.TrimLeft(line, " \t")
		i := strings.IndexAny(line, " \t")
		if i < 0 {
			return ""
		}
		line = line[i:]
	}
	if o.field > 1 && o.sep == "" {
		return strings.TrimLeft(line, " \t")
	}
	return line
}

// leadingNumber is the number that a text starts with; 0 if it does not.
func leadingNumber(s string) float64 {
	s = strings.TrimLeft(s, " \t")
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '-' })
	if end < 0 {
		end = len(s)
	}
	f, err := strconv.ParseFloat(s[:end], 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return f
}
