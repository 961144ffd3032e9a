// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

var wgetSyntax = optionSyntax{
	letters: "qSnvcO:T:t:s",
	long: map[string]byte{
		"quiet":           'q',
		"output-document": 'O',
		"timeout":         'T',
		"tries":           't',
		"spider":          's',
		"no-verbose":      'n',
		"server-response": 'S',
	},
	usage: "wget [-q] [-O FILE] [-T SECONDS] [--spider] URL",
}

// wget prints the body at an http URL; -O FILE writes it to a file, -T N is a time limit in seconds, --spider asks only
// whether it is there. -q, -S, -n, -v, -c and -t have no effect.
func wget(args []string, std stdio) int {
	opts, urls, err := wgetSyntax.parse(args)
	if err == nil && len(urls) != 1 {
		err = wgetSyntax.wantUsage()
	}
	if err != nil {
		return complain(std, args[0], err)
	}
	timeout := time.Duration(atoi(opts.get('T', ""), 10)) * time.Second
	if opts.has('s') {
		if err := fetch("HEAD", urls[0], timeout, io.Discard); err != nil {
			return complain(std, args[0], err)
		}
		fmt.Fprintln(std.err, "remote file exists")
		return 0
	}
	out := std.out
	if file := opts.get('O', "-"); file != "-" {
		f, err := os.Create(file)
		if err != nil {
			return complain(std, args[0], err)
		}
		defer func() { _ = f.Close() }() // io.Copy has checked the writes
		out = f
	}
	if err := fetch("GET", urls[0], timeout, out); err != nil {
		return complain(std, args[0], err)
	}
	return 0
}

// fetch copies a body to out, also that of an error response.
func fetch(method, url string, timeout time.Duration, out io.Writer) error {
	to, err := parseURL(url)
	if err != nil {
		return err
	}
	p, err := call{method: method, target: to, total: timeout}.send()
	if err != nil {
		return err
	}
	defer func() { _ = p.conn.Close() }()
	if err := p.copyBody(out); err != nil {
		return err
	}
	if p.status/100 != 2 {
		return fmt.Errorf("server answered %s", p.lines[0])
	}
	return nil
}
