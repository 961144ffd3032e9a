// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var curlSyntax = optionSyntax{
	letters: "sSfkiIvLo:X:H:d:w:m:C:",
	long: map[string]byte{
		"silent":          's',
		"show-error":      'S',
		"fail":            'f',
		"insecure":        'k',
		"include":         'i',
		"head":            'I',
		"verbose":         'v',
		"location":        'L',
		"output":          'o',
		"request":         'X',
		"header":          'H',
		"data":            'd',
		"data-binary":     'd',
		"data-raw":        'd',
		"write-out":       'w',
		"max-time":        'm',
		"connect-timeout": 'C',
	},
	usage: "curl [-s] [-S] [-f] [-i] [-I] [-v] [-L] [-o FILE] [-X METHOD] [-H 'NAME: VALUE'] [-d DATA] [-w FORMAT] " +
		"[-m SECONDS] URL",
}

// Exit codes of curl that scripts know.
const (
	curlProtocol = 1
	curlUsage    = 2
	curlURL      = 3
	curlResolve  = 6
	curlConnect  = 7
	curlStatus   = 22
	curlWrite    = 23
	curlTimeout  = 28
	curlEmpty    = 52
	curlReceive  = 56
)

const maxRedirects = 10

// curl makes a request to an http URL, as the program of this name does. -k has no effect: there is no TLS.
func curl(args []string, std stdio) int {
	opts, urls, err := curlSyntax.parse(args)
	if err == nil && len(urls) != 1 {
		err = curlSyntax.wantUsage()
	}
	if err != nil {
		complain(std, "curl", err)
		return curlUsage
	}
	c, err := newCall(opts, urls[0], std.in)
	start := time.Now()
	got := 0
	size := counter{}
	if err == nil {
		got, err = c.run(opts, std, &size)
	}
	if format := opts.get('w', ""); format != "" {
		fmt.Fprint(std.out, strings.NewReplacer(`\n`, "\n", `\t`, "\t", "%%", "%", "%{http_code}",
			fmt.Sprintf("%03d", got),
			"%{response_code}", fmt.Sprintf("%03d", got), "%{size_download}", strconv.Itoa(size.n),
			"%{time_total}", fmt.Sprintf("%.6f", time.Since(start).Seconds())).Replace(format))
	}
	if err == nil {
		return 0
	}
	code := curlCode(err)
	if !opts.has('s') || opts.has('S') {
		fmt.Fprintf(std.err, "curl: (%d) %v\n", code, err)
	}
	return code
}

// newCall is the request that the options ask for.
func newCall(opts options, url string, stdin io.Reader) (call, error) {
	c := call{method: "GET", header: opts['H']}
	var err error
	if c.target, err = parseURL(url); err != nil {
		return c, err
	}
	var data []string
	for _, d := range opts['d'] {
		if file, ok := strings.CutPrefix(d, "@"); ok {
			b, err := readBody(file, stdin)
			if err != nil {
				return c, err
			}
			d = string(b)
		}
		data = append(data, d)
	}
	if c.body = strings.Join(data, "&"); data != nil {
		c.method = "POST"
		if !hasField(c.header, "Content-Type") {
			c.header = append(c.header, "Content-Type: application/x-www-form-urlencoded")
		}
	}
	if opts.has('I') {
		c.method = "HEAD"
	}
	c.method = opts.get('X', c.method)
	if c.total, err = seconds(opts.get('m', "0")); err == nil {
		c.connect, err = seconds(opts.get('C', "0"))
	}
	return c, err
}

// readBody reads a file, or standard input, that is sent as a body.
func readBody(file string, stdin io.Reader) ([]byte, error) {
	f := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = opened.Close() }()
		f = opened
	}
	b, err := io.ReadAll(io.LimitReader(f, maxBody+1))
	if err == nil && len(b) > maxBody {
		err = fmt.Errorf("%s is larger than %d MiB", file, maxBody>>20)
	}
	return b, err
}

func seconds(text string) (time.Duration, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f > 1e6 {
		return 0, fmt.Errorf("%q is not a number of seconds", text)
	}
	return time.Duration(f * float64(time.Second)), nil
}

// statusError is the answer that -f makes an error.
type statusError int

func (s statusError) Error() string {
	return fmt.Sprintf("the requested URL returned error: %d", int(s))
}

type writeError struct{ error }

// counter counts what is written to it.
type counter struct {
	to io.Writer
	n  int
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += n
	if err != nil {
		err = writeError{err}
	}
	return n, err
}

// run sends the request, with -L also those to where the server points, and writes the response. status is 0 without
// one.
func (c call) run(opts options, std stdio, out *counter) (status int, err error) {
	for hop := 0; ; hop++ {
		reply, err := c.send()
		if err != nil {
			return 0, err
		}
		if opts.has('v') {
			fmt.Fprint(std.err,
				prefixed("> ", c.request())+prefixed("< ", strings.Join(reply.lines, "\r\n")+"\r\n\r\n"))
		}
		if to := reply.header["location"]; opts.has('L') && reply.status/100 == 3 && to != "" && hop < maxRedirects {
			_ = reply.conn.Close()
			if !strings.Contains(to, "://") {
				to = "http://" + c.target.String() + "/" + strings.TrimPrefix(to, "/")
			}
			if c.target, err = parseURL(to); err != nil {
				return reply.status, err
			}
			if c.method == "POST" && reply.status < 307 {
				c.method = "GET"
				c.body = ""
			}
			continue
		}
		err = reply.deliver(opts, std, out)
		_ = reply.conn.Close()
		return reply.status, err
	}
}

func prefixed(prefix, lines string) string {
	return prefix + strings.ReplaceAll(strings.TrimSuffix(lines, "\r\n"), "\r\n", "\r\n"+prefix) + "\r\n"
}

// deliver writes the response to where the options say.
func (p *reply) deliver(opts options, std stdio, out *counter) error {
	if opts.has('f') && p.status >= 400 {
		return statusError(p.status)
	}
	out.to = std.out
	if file := opts.get('o', "-"); file != "-" {
		f, err := os.Create(file)
		if err != nil {
			return writeError{err}
		}
		defer func() { _ = f.Close() }() // the writes have been checked
		out.to = f
	}
	if opts.has('i') || opts.has('I') {
		if _, err := io.WriteString(out.to, strings.Join(p.lines, "\r\n")+"\r\n\r\n"); err != nil {
			return writeError{err}
		}
	}
	return p.copyBody(out)
}

// curlCode is the exit code for an error.
func curlCode(err error) int {
	var dns *net.DNSError
	var dial *net.OpError
	var timeout net.Error
	var status statusError
	var wrote writeError
	switch {
	case errors.As(err, &status):
		return curlStatus
	case errors.As(err, &wrote):
		return curlWrite
	case errors.Is(err, errNoTLS):
		return curlProtocol
	case errors.Is(err, errBadURL):
		return curlURL
	case errors.As(err, &dns):
		return curlResolve
	case errors.As(err, &timeout) && timeout.Timeout():
		return curlTimeout
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, syscall.ECONNREFUSED):
		return curlConnect
	case errors.Is(err, io.EOF):
		return curlEmpty
	}
	return curlReceive
}
