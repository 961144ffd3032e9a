// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// tail prints the last lines ("-n N", "-N"), or everything from a line or byte on ("-n +N", "-c +N").
func tail(args []string, std stdio) int {
	n, unit, files := "10", byte('n'), args[1:]
	for len(files) > 0 && len(files[0]) > 1 && files[0][0] == '-' {
		opt := files[0][1:]
		files = files[1:]
		switch opt[0] {
		case 'n', 'c':
			unit = opt[0]
			if n = opt[1:]; n == "" {
				if len(files) == 0 {
					return complain(std, "tail", errors.New("usage: tail [-n [+]N | -c +N] [FILE]...")) //nolint:revive,staticcheck // the dots are of the usage
				}
				n, files = files[0], files[1:]
			}
		default:
			n = opt
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	from, on := strings.CutPrefix(n, "+")
	count := atoi(from, -1)
	if count < 0 || unit == 'c' && !on {
		return complain(std, "tail", fmt.Errorf("%q is not a number that this tail knows", n))
	}
	return each("tail", files, std, func(r io.Reader) error {
		switch {
		case unit == 'c':
			if _, err := io.CopyN(io.Discard, r, int64(max(count-1, 0))); err != nil {
				return notEOF(err)
			}
			_, err := io.Copy(std.out, r)
			return err
		case on:
			return linesFrom(r, std.out, count)
		}
		return lastLines(r, std.out, count)
	})
}

func linesFrom(r io.Reader, out io.Writer, first int) error {
	br := bufio.NewReader(r)
	for n := 1; n < first; n++ {
		if _, err := br.ReadString('\n'); err != nil {
			return notEOF(err)
		}
	}
	_, err := io.Copy(out, br)
	return err
}

func lastLines(r io.Reader, out io.Writer, count int) error {
	br := bufio.NewReader(r)
	var last []string
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			if last = append(last, line); len(last) > count {
				last = last[1:]
			}
		}
		if err != nil {
			if _, wrong := io.WriteString(out, strings.Join(last, "")); wrong != nil {
				return wrong
			}
			return notEOF(err)
		}
	}
}
