// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"
)

// call is one HTTP request of wget or curl. There is no TLS: it would make the program half as large again.
type call struct {
	method string
	target target
	header []string // lines; those that are not there get a default
	body   string
	// connect bounds the time until the connection is open, and total all; 0: no bound.
	connect, total time.Duration
}

// target is what a URL says.
type target struct{ host, port, path string }

var (
	errNoTLS   = errors.New("https is not supported: the program has no TLS; use http://")
	errBadURL  = errors.New("malformed URL; want http://HOST[:PORT]/PATH")
	errBadHTTP = errors.New("malformed HTTP response")
)

// parseURL parses http://HOST[:PORT][/PATH][?QUERY]. The scheme may be left out.
func parseURL(url string) (target, error) {
	rest, ok := strings.CutPrefix(url, "http://")
	switch {
	case strings.HasPrefix(url, "https://"):
		return target{}, fmt.Errorf("%s: %w", url, errNoTLS)
	case !ok && strings.Contains(url, "://") || rest == "" || strings.ContainsAny(url, " \r\n\t"):
		return target{}, fmt.Errorf("%q: %w", url, errBadURL)
	}
	rest, _, _ = strings.Cut(rest, "#")
	host := rest
	path := "/"
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		host = rest[:i]
		path = "/" + strings.TrimPrefix(rest[i:], "/")
	}
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
		port = "80"
	}
	if name == "" {
		return target{}, fmt.Errorf("%q: %w", url, errBadURL)
	}
	return target{name, port, path}, nil
}

// String is the value of the Host field.
func (t target) String() string {
	host := t.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.port != "80" {
		host += ":" + t.port
	}
	return host
}

// reply is the response to a call.
type reply struct {
	status int
	proto  string            // HTTP/1.1
	lines  []string          // status line and header, as received
	header map[string]string // lower-case names
	body   *bufio.Reader
	empty  bool // the response has no body, whatever its header says
	conn   net.Conn
}

// request is the text that is sent, without the body.
func (c call) request() string {
	lines := append([]string{c.method + " " + c.target.path + " HTTP/1.1"}, c.header...)
	for _, l := range []string{"Host: " + c.target.String(), "User-Agent: hello", "Accept: */*", "Connection: close"} {
		if name, _, _ := strings.Cut(l, ":"); !hasField(c.header, name) {
			lines = append(lines, l)
		}
	}
	if c.body != "" || c.method == "POST" || c.method == "PUT" || c.method == "PATCH" {
		lines = append(lines, "Content-Length: "+strconv.Itoa(len(c.body)))
	}
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// hasField reports whether a field is among the lines of a header.
func hasField(lines []string, name string) bool {
	for _, l := range lines {
		if k, _, _ := strings.Cut(l, ":"); strings.EqualFold(strings.TrimSpace(k), name) {
			return true
		}
	}
	return false
}

// send sends the request and reads the response up to its body. The caller closes the connection.
func (c call) send() (*reply, error) {
	start := time.Now()
	dial := c.connect
	if dial == 0 || c.total > 0 && c.total < dial {
		dial = c.total
	}
	addr := net.JoinHostPort(c.target.host, c.target.port)
	conn, err := net.DialTimeout("tcp", addr, dial) //nolint:noctx // a program of its own: there is no context
	if err != nil {
		return nil, err
	}
	p := &reply{conn: conn, body: bufio.NewReader(conn)}
	if c.total > 0 {
		err = conn.SetDeadline(start.Add(c.total))
	}
	if err == nil {
		_, err = io.WriteString(conn, c.request()+c.body)
	}
	if err == nil {
		err = p.readHeader()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	p.empty = c.method == "HEAD" || p.status == 204 || p.status == 304
	return p, nil
}

// readHeader reads up to the body of the final response.
func (p *reply) readHeader() error {
	const maxInterim = 10
	for range maxInterim {
		line, err := readLine(p.body)
		if err != nil {
			return err
		}
		f := strings.SplitN(line, " ", 3)
		if len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1.") || len(f[1]) != 3 {
			return errBadHTTP
		}
		if p.status, err = strconv.Atoi(f[1]); err != nil {
			return errBadHTTP
		}
		p.proto = f[0]
		p.header = map[string]string{}
		fields, err := readFieldLines(p.body, p.header)
		if err != nil {
			return err
		}
		if p.lines = append([]string{line}, fields...); p.status >= 200 {
			return nil
		}
	}
	return errBadHTTP
}

// copyBody copies the body to an output.
func (p *reply) copyBody(to io.Writer) error {
	length, sized := p.header["content-length"]
	switch {
	case p.empty:
		return nil
	case strings.EqualFold(p.header["transfer-encoding"], "chunked"):
		return copyChunks(to, p.body, math.MaxInt64)
	case sized:
		n, err := strconv.ParseUint(length, 10, 63)
		if err != nil {
			return errBadHTTP
		}
		_, err = io.CopyN(to, p.body, int64(n)) // 63 bits
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	_, err := io.Copy(to, p.body)
	return err
}
