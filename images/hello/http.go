// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The part of HTTP/1.1 (RFC 9112) that a server of short texts needs: request lines, headers, bodies (by length or
// chunked), which are discarded, and persistent connections.

const (
	maxLine   = 8 << 10
	maxFields = 100
	maxBody   = 8 << 20
)

type request struct {
	method, target, proto string
	header                map[string]string // lower-case names
	keepAlive             bool
}

// badRequest is an error that is sent to the client.
type badRequest struct {
	status int
	why    string
}

func (b badRequest) Error() string { return b.why }

// readRequest reads one request and its body. After any error the connection is closed; a badRequest is answered
// before.
func readRequest(in *bufio.Reader) (request, error) {
	line, err := readLine(in)
	if err != nil {
		return request{}, err
	}
	f := strings.Split(line, " ")
	if len(f) != 3 || f[0] == "" || !strings.HasPrefix(f[1], "/") && f[1] != "*" {
		return request{}, badRequest{400, "malformed request line"}
	}
	req := request{
		method: f[0],
		target: f[1],
		proto:  f[2],
		header: map[string]string{},
	}
	if req.proto != "HTTP/1.1" && req.proto != "HTTP/1.0" {
		return request{}, badRequest{505, "only HTTP/1.1 and HTTP/1.0"}
	}
	if err := readFields(in, req.header); err != nil {
		return req, err
	}
	if req.proto == "HTTP/1.1" && req.header["host"] == "" {
		return req, badRequest{400, "no Host"}
	}
	conn := strings.ToLower(req.header["connection"])
	req.keepAlive = req.proto == "HTTP/1.1" && !strings.Contains(conn, "close") || strings.Contains(conn, "keep-alive")
	if req.header["expect"] != "" || req.header["upgrade"] != "" {
		req.keepAlive = false // neither is supported, so the connection is closed after the response
		return req, nil
	}
	return req, skipBody(in, req.header)
}

func readLine(r *bufio.Reader) (string, error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		if len(b) > maxLine {
			return "", badRequest{431, "line too long"}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
	}
}

func readFields(r *bufio.Reader, into map[string]string) error {
	_, err := readFieldLines(r, into)
	return err
}

// readFieldLines also returns the lines as they were received.
func readFieldLines(r *bufio.Reader, into map[string]string) (lines []string, err error) {
	for range maxFields {
		line, err := readLine(r)
		if err != nil || line == "" {
			return lines, err
		}
		k, v, ok := strings.Cut(line, ":")
		if !ok || k == "" || strings.ContainsAny(k, " \t") {
			return nil, badRequest{400, "malformed header field"}
		}
		k = strings.ToLower(k)
		if _, twice := into[k]; twice && (k == "content-length" || k == "host") {
			return nil, badRequest{400, "repeated " + k}
		}
		into[k] = strings.TrimSpace(v)
		lines = append(lines, line)
	}
	return nil, badRequest{431, "too many header fields"}
}

func skipBody(in *bufio.Reader, h map[string]string) error {
	te, chunked := h["transfer-encoding"]
	cl, sized := h["content-length"]
	switch {
	case chunked && (sized || !strings.EqualFold(te, "chunked")):
		return badRequest{400, "unclear length of body"}
	case chunked:
		return copyChunks(io.Discard, in, maxBody)
	case sized:
		n, err := strconv.ParseUint(cl, 10, 63)
		if err != nil {
			return badRequest{400, "malformed Content-Length"}
		}
		if n > maxBody {
			return badRequest{413, "body too large"}
		}
		_, err = io.CopyN(io.Discard, in, int64(n))
		return err
	}
	return nil
}

// copyChunks copies a chunked body of at most limit bytes.
func copyChunks(to io.Writer, in *bufio.Reader, limit uint64) error {
	total := uint64(0)
	for {
		line, err := readLine(in)
		if err != nil {
			return err
		}
		size, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseUint(strings.TrimSpace(size), 16, 31)
		if err != nil {
			return badRequest{400, "malformed chunk"}
		}
		if total += n; total > limit {
			return badRequest{413, "body too large"}
		}
		if n == 0 {
			return readFields(in, map[string]string{})
		}
		if _, err := io.CopyN(to, in, int64(n)); err != nil {
			return err
		}
		if end, err := readLine(in); err != nil || end != "" {
			return badRequest{400, "malformed chunk"}
		}
	}
}

func statusText(code int) string {
	switch code {
	case 200:
		return "OK"
	case 404:
		return "Not Found"
	case 405:
		return "Method Not Allowed"
	case 413:
		return "Content Too Large"
	case 431:
		return "Request Header Fields Too Large"
	case 505:
		return "HTTP Version Not Supported"
	}
	return "Bad Request"
}

// writeResponse sends a response in one write.
func writeResponse(out io.Writer, req request, resp response, keep bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n",
		resp.status, statusText(resp.status), len(resp.body))
	switch {
	case !keep:
		b.WriteString("Connection: close\r\n")
	case req.proto == "HTTP/1.0":
		b.WriteString("Connection: keep-alive\r\n")
	}
	b.WriteString("\r\n")
	if req.method != "HEAD" {
		b.WriteString(resp.body)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
