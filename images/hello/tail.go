// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// tail prints the last lines ("-n N", "-N"), or everything from a line or byte on ("-n +N", "-c +N"). -f then prints
// what is appended to the file, -F also when the file is replaced.
func tail(args []string, std stdio) int {
	args, following := followOption(args[1:])
	n, unit, files, err := countOption(args)
	if err != nil {
		return complain(std, "tail", err)
	}
	from, on := strings.CutPrefix(n, "+")
	count := atoi(from, -1)
	if count < 0 || unit == 'c' && !on {
		return complain(std, "tail", fmt.Errorf("%q is not a number that tail supports", n))
	}
	first := func(in io.Reader) error {
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
	}
	switch {
	case following == 0, files[0] == "-":
		return each("tail", files, std, first)
	case len(files) > 1:
		return complain(std, "tail", errors.New("only one file can be followed"))
	}
	return complain(std, "tail", follow(files[0], following == 'F', first, std))
}

// followOption takes -f and -F out of the options; option is 0 if neither is there.
func followOption(args []string) (rest []string, option byte) {
	for i, arg := range args {
		if len(arg) < 2 || arg[0] != '-' {
			return append(rest, args[i:]...), option
		}
		letters := strings.Map(func(letter rune) rune {
			if letter == 'f' || letter == 'F' {
				option = byte(letter)
				return -1
			}
			return letter
		}, arg)
		if letters != "-" {
			rest = append(rest, letters)
		}
	}
	return rest, option
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
