// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

var cutSyntax = optionSyntax{
	letters: "d:f:c:b:s",
	usage:   "cut -f LIST [-d CHARACTER] [-s] [FILE]... or cut -c LIST [FILE]...",
}

// span is a part of a list of fields: from and to, counted from 1.
type span struct{ from, to int }

type spans []span

func (s spans) has(n int) bool {
	for _, p := range s {
		if p.from <= n && n <= p.to {
			return true
		}
	}
	return false
}

// parseSpans parses a list such as 1,3-5,7-.
func parseSpans(list string) (spans, error) {
	var out spans
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		p := span{1, math.MaxInt}
		var err1, err2 error
		if from != "" {
			p.from, err1 = strconv.Atoi(from)
		}
		if !isRange {
			p.to = p.from
		} else if to != "" {
			p.to, err2 = strconv.Atoi(to)
		}
		if err1 != nil || err2 != nil || p.from < 1 || p.to < p.from || from == "" && to == "" {
			return nil, fmt.Errorf("%q is not a list such as 1,3-5", list)
		}
		out = append(out, p)
	}
	return out, nil
}

// cut prints parts of each line: fields (-f), or bytes (-c, -b).
func cut(args []string, std stdio) int {
	opts, files, err := cutSyntax.parse(args)
	if err != nil {
		return complain(std, "cut", err)
	}
	list := opts.get('f', "")
	sep := opts.get('d', "\t")
	if list == "" {
		list = opts.get('c', opts.get('b', ""))
		sep = ""
	}
	if list == "" || sep == "" && opts.has('f') {
		return complain(std, "cut", cutSyntax.wantUsage())
	}
	which, err := parseSpans(list)
	if err != nil {
		return complain(std, "cut", err)
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	out := bufio.NewWriter(std.out)
	code := each("cut", files, std, func(r io.Reader) error {
		br := bufio.NewReader(r)
		for {
			line, err := br.ReadString('\n')
			if line = strings.TrimSuffix(line, "\n"); (line != "" || err == nil) &&
				(sep == "" || !opts.has('s') || strings.Contains(line, sep)) {
				if _, err := out.WriteString(which.of(line, sep) + "\n"); err != nil {
					return err
				}
			}
			if err != nil {
				return notEOF(err)
			}
		}
	})
	if err := out.Flush(); err != nil {
		return complain(std, "cut", err)
	}
	return code
}

// of is the part of a line that was asked for. A line without the separator is one field, which is always printed.
func (s spans) of(line, sep string) string {
	if sep != "" && !strings.Contains(line, sep) {
		return line
	}
	var parts []string
	for i, part := range strings.Split(line, sep) {
		if s.has(i + 1) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, sep)
}
