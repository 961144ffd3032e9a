// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// tail prints the last lines ("-n N", "-N"), or everything from a line or byte on ("-n +N", "-c +N").
func tail(args []string, std stdio) int {
	n, unit, files, err := countOption(args[1:])
	if err != nil {
		return complain(std, "tail", err)
	}
	from, on := strings.CutPrefix(n, "+")
	count := atoi(from, -1)
	if count < 0 || unit == 'c' && !on {
		return complain(std, "tail", fmt.Errorf("%q is not a number that tail supports", n))
	}
	return each("tail", files, std, func(in io.Reader) error {
		switch {
		case unit == 'c':
			if _, err := io.CopyN(io.Discard, in, int64(max(count-1, 0))); err != nil {
				return notEOF(err)
			}
			_, err := io.Copy(std.out, in)
			return err
		case on:
			return linesFrom(in, std.out, count)
		}
		return lastLines(in, std.out, count)
	})
}

// countOption parses the options of head and tail: "-n N", "-c N", "-N". A "-" is a file.
func countOption(args []string) (n string, unit byte, files []string, err error) {
	n = "10"
	unit = 'n'
	files = args
	for len(files) > 0 && len(files[0]) > 1 && files[0][0] == '-' {
		opt := files[0][1:]
		files = files[1:]
		if opt[0] != 'n' && opt[0] != 'c' {
			n = opt
			continue
		}
		unit = opt[0]
		if n = opt[1:]; n == "" {
			if len(files) == 0 {
				return "", 0, nil, fmt.Errorf("-%c wants a number", unit)
			}
			n = files[0]
			files = files[1:]
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	return n, unit, files, nil
}

func linesFrom(r io.Reader, out io.Writer, first int) error {
	br := bufio.NewReader(r)
	if err := copyLines(br, io.Discard, first-1); err != nil {
		return notEOF(err)
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
