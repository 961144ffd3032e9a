// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
)

// maxArguments bounds the bytes of one command's arguments; the kernel takes more.
const maxArguments = 128 << 10

var xargsSyntax = optionSyntax{
	letters: "0n:I:rt",
	early:   true,
	usage:   "xargs [-0] [-r] [-t] [-n COUNT] [-I REPLACED] [COMMAND [ARGUMENT]...]",
}

// argumentRunner runs a command with arguments that are read from the standard input.
type argumentRunner struct {
	command []string
	replace string // with -I: the text that a line replaces
	show    bool
	std     stdio
	code    int
}

// xargs runs a command (echo) with the words of its input as further arguments. -n N: with at most N of them; -I R:
// once a line, which replaces R; -0: words end with a NUL byte; -r: not without words; -t: print each command first.
func xargs(args []string, std stdio) int {
	opts, command, err := xargsSyntax.parse(args)
	limit := 0
	if n := opts.get('n', ""); err == nil && n != "" {
		if limit, err = strconv.Atoi(n); err != nil || limit < 1 {
			err = fmt.Errorf("-n %q is not a positive number", n)
		}
	}
	if err != nil {
		return complain(std, "xargs", err)
	}
	if len(command) == 0 {
		command = []string{"echo"}
	}
	x := &argumentRunner{
		command: command,
		replace: opts.get('I', ""),
		show:    opts.has('t'),
		std:     std,
	}
	if x.replace != "" {
		limit = 1
	}
	in := bufio.NewReader(std.in)
	next := readWord
	switch {
	case opts.has('0'):
		next = func(r *bufio.Reader) (string, error) { return readUntil(r, 0) }
	case x.replace != "":
		next = func(r *bufio.Reader) (string, error) { return readUntil(r, '\n') }
	}
	var words []string
	size := 0
	ran := false
	for {
		word, err := next(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return complain(std, "xargs", err)
		}
		ended := err != nil
		if len(words) > 0 && (ended || len(words) == limit || size+len(word) > maxArguments) || ended && !ran &&
			!opts.has('r') && x.replace == "" {
			x.run(words)
			words = nil
			size = 0
			ran = true
		}
		if ended || x.code > 125 {
			return x.code
		}
		words = append(words, word)
		size = size + len(word) + 1
	}
}

// run runs the command once. The code of xargs is 123 if one failed, 126 and 127 if it cannot be started.
func (x *argumentRunner) run(words []string) {
	args := append(append([]string{}, x.command...), words...)
	if x.replace != "" {
		args = args[:len(x.command)]
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], x.replace, words[0])
		}
	}
	if x.show {
		fmt.Fprintln(x.std.err, strings.Join(args, " "))
	}
	path, argv0, err := lookup(".", expand.ListEnviron(os.Environ()...), args[0])
	if err != nil {
		fmt.Fprintf(x.std.err, "xargs: %v\n", err)
		x.code = 127
		return
	}
	cmd := &exec.Cmd{
		Path:   path,
		Args:   append([]string{argv0}, args[1:]...),
		Stdout: x.std.out,
		Stderr: x.std.err,
	}
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case errors.As(err, &exit):
		x.code = 123
	case err != nil:
		complain(x.std, "xargs", err)
		x.code = 126
	}
}

// readUntil reads a word up to a delimiter. Empty words are left out.
func readUntil(r *bufio.Reader, end byte) (string, error) {
	for {
		var word []byte
		c, err := r.ReadByte()
		for ; err == nil && c != end; c, err = r.ReadByte() {
			if word = append(word, c); len(word) > maxArguments {
				return "", errors.New("argument too long")
			}
		}
		if len(word) > 0 {
			return string(word), nil // an error comes again
		}
		if err != nil {
			return "", err
		}
	}
}

// readWord reads a word that ends with a blank or a line's end. Quotes and backslashes quote.
func readWord(in *bufio.Reader) (string, error) {
	var word []byte
	quote := byte(0)
	some := false
	for {
		c, err := in.ReadByte()
		if err != nil {
			if some && errors.Is(err, io.EOF) && quote == 0 {
				return string(word), nil
			}
			if quote != 0 {
				return "", fmt.Errorf("quote %c is not closed", quote)
			}
			return "", err
		}
		switch {
		case len(word) > maxArguments:
			return "", errors.New("argument too long")
		case quote != 0 && c == quote:
			quote = 0
			continue
		case quote != 0:
		case c == '"' || c == '\'':
			quote = c
			some = true
			continue
		case c == '\\':
			if c, err = in.ReadByte(); err != nil {
				return "", errors.New("nothing follows a backslash")
			}
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if some {
				return string(word), nil
			}
			continue
		}
		word = append(word, c)
		some = true
	}
}
