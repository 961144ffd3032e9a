// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

var errMalformed = errors.New("malformed request")

const (
	// maxFields bounds the header fields of a request; with more the response is 431.
	maxFields = 4000
	// maxTrailers bounds the announced trailers of a request; further ones are dropped.
	maxTrailers = 100
)

// request makes st.req from a header block.
func (st *stream) request(ctx context.Context, frame *http2.MetaHeadersFrame) error {
	method := frame.PseudoValue("method")
	scheme := frame.PseudoValue("scheme")
	path := frame.PseudoValue("path")
	authority := frame.PseudoValue("authority")
	if frame.PseudoValue("protocol") != "" || frame.PseudoValue("status") != "" {
		return errMalformed
	}
	target, err := parseTarget(method, scheme, path, authority)
	if err != nil {
		return err
	}
	if len(frame.Fields) > maxFields {
		frame.Fields = frame.Fields[:min(len(frame.Fields), maxFields)]
		frame.Truncated = true
	}
	header, err := headerOf(frame)
	if err != nil {
		return err
	}
	if authority == "" {
		authority = header.Get("Host")
	}
	header.Del("Host")
	c := st.c
	r := new(http.Request).WithContext(ctx)
	r.Method = method
	r.URL = target
	r.Proto = "HTTP/2.0"
	r.ProtoMajor = 2
	r.Header = header
	r.Host = authority
	r.RequestURI = path
	r.RemoteAddr = c.remote
	r.TLS = &c.tls
	if method == http.MethodConnect {
		r.RequestURI = authority
	}
	st.req = r
	if err := st.requestBody(); err != nil {
		return err
	}
	if names := header.Values("Trailer"); len(names) > 0 {
		r.Trailer = announced(names)
		header.Del("Trailer")
	}
	if frame.Truncated {
		st.tooLarge = true
	}
	return nil
}

// parseTarget parses the request target (RFC 9113, section 8.3.1).
func parseTarget(method, scheme, path, authority string) (*url.URL, error) {
	if method == http.MethodConnect {
		if scheme != "" || path != "" || authority == "" {
			return nil, errMalformed
		}
		return &url.URL{Host: authority}, nil
	}
	if method == "" || path == "" || scheme != "https" && scheme != "http" || path[0] != '/' && path != "*" {
		return nil, errMalformed
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, fmt.Errorf("path of the request: %w", err)
	}
	return u, nil
}

// headerOf converts the header of a request, with one backing slice for all values.
func headerOf(f *http2.MetaHeadersFrame) (http.Header, error) {
	fields := f.RegularFields()
	header := make(http.Header, len(fields)+1) // handlers add fields
	values := make([]string, len(fields))
	var cookies []string
	for i, hf := range fields {
		switch hf.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return nil, errMalformed
		case "te":
			if hf.Value != "trailers" {
				return nil, errMalformed
			}
		}
		key := http.CanonicalHeaderKey(hf.Name)
		switch had := header[key]; {
		case had == nil:
			values[i] = hf.Value
			header[key] = values[i : i+1 : i+1]
		case key == "Cookie":
			if cookies == nil {
				cookies = append(cookies, had[0])
			}
			cookies = append(cookies, hf.Value)
		default:
			header[key] = append(had, hf.Value)
		}
	}
	if cookies != nil {
		header["Cookie"][0] = strings.Join(cookies, "; ") // joined once: appending each would copy the text before it
	}
	return header, nil
}

// requestBody sets the body and its length.
func (st *stream) requestBody() error {
	r := st.req
	st.declared = -1
	if cl, ok := r.Header["Content-Length"]; ok {
		n, err := strconv.ParseUint(cl[0], 10, 63)
		if err != nil || len(cl) > 1 {
			return errMalformed
		}
		st.declared = int64(n)
	}
	if st.ended {
		if st.declared > 0 {
			return errMalformed
		}
		r.Body = http.NoBody
		return nil
	}
	r.ContentLength = st.declared
	r.Body = body{st}
	if httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue") {
		st.expects = true
		r.Header.Del("Expect")
	}
	return nil
}

// announced returns the trailers that a request announces, without values.
func announced(lines []string) http.Header {
	header := http.Header{}
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			if len(header) == maxTrailers {
				return header
			}
			if key := http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(key) {
				header[key] = nil
			}
		}
	}
	return header
}
