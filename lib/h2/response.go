// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// bodyBuffer is the size of the buffer of a response's body.
const bodyBuffer = 16 << 10

// response is the http.ResponseWriter of a stream. Only its handler uses it.
type response struct {
	st       *stream
	header   http.Header
	code     int     // 0: not decided
	fields   []field // the header at the time of WriteHeader
	sent     bool
	finished bool
	hangUp   bool // the handler has set Connection: close
	sniff    bool // neither Content-Type nor Content-Encoding is given
	dated    bool
	declared int64 // Content-Length; -1 when unknown
	wrote    int64
	buf      *[]byte // from bodies; nil when empty
	trailers []string
}

var bodies = sync.Pool{New: func() any {
	b := make([]byte, 0, bodyBuffer)
	return &b
}}

// handle runs the handler of st and sends the buffered rest of the response.
func (c *conn) handle(st *stream) {
	r := &response{st: st, header: make(http.Header, 8), declared: -1}
	defer func() {
		r.release()
		if r.finished {
			return
		}
		r.finished = true
		p := recover()
		st.abort(errAborted)
		if err, ok := p.(error); p != nil && (!ok || !errors.Is(err, http.ErrAbortHandler)) {
			c.logf("http2: panic serving %s: %v\n%s", c.remote, p, debug.Stack())
		}
	}()
	if st.tooLarge {
		r.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	} else {
		c.handler.ServeHTTP(r, st.req)
	}
	if t := c.s.options.WriteTimeout; t > 0 {
		st.sendUntil(time.Now().Add(t)) // after the handler nothing else ends the wait
	}
	r.finish()
	r.finished = true
	if r.hangUp {
		c.goAway()
	}
}

func (c *conn) logf(format string, args ...any) {
	if l := c.s.hs.ErrorLog; l != nil {
		l.Printf(format, args...)
	}
}

// Header returns the response header. Changes after WriteHeader have no effect, except for trailers.
func (r *response) Header() http.Header { return r.header }

// WriteHeader sets the code. Informational codes are sent at once and may be followed by others.
func (r *response) WriteHeader(code int) {
	if code < 100 || code > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", code))
	}
	switch {
	case r.code != 0 || r.finished:
		return
	case code < 200:
		r.st.inform(code, r.header)
		return
	}
	r.code = code
	r.sniff = true
	r.fields = append(make([]field, 0, len(r.header)+4), status(code))
	for key, values := range r.header {
		r.snapshot(key, values)
	}
}

// snapshot adds a field to the response, unless HTTP/2 does not allow it.
func (r *response) snapshot(key string, values []string) {
	if strings.HasPrefix(key, http.TrailerPrefix) || len(values) == 0 {
		return
	}
	switch key {
	case "Connection":
		r.hangUp = values[0] == "close"
		return
	case "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade":
		return
	case "Content-Length":
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || n < 0 {
			return
		}
		r.declared = n
		values = values[:1]
	case "Content-Type", "Content-Encoding":
		r.sniff = false
	case "Date":
		r.dated = true
	case "Trailer":
		for _, line := range values {
			for name := range strings.SplitSeq(line, ",") {
				r.trailers = append(r.trailers, http.CanonicalHeaderKey(strings.TrimSpace(name)))
			}
		}
	}
	r.fields = appendFields(r.fields, key, values)
}

func appendFields(to []field, key string, values []string) []field {
	name, ok := lowerNames[key]
	if !ok {
		if !httpguts.ValidHeaderFieldName(key) {
			return to
		}
		name = strings.ToLower(key)
	}
	for _, v := range values {
		if httpguts.ValidHeaderFieldValue(v) {
			to = append(to, field{Name: name, Value: v})
		}
	}
	return to
}

// lowerNames are the lower-case names of common response fields.
var lowerNames = func() map[string]string {
	m := map[string]string{}
	for name := range strings.FieldsSeq(
		`Audit-Id Cache-Control Content-Encoding Content-Length Content-Type Date Etag Expires Last-Modified
		Location Retry-After Set-Cookie Trailer Vary Warning Www-Authenticate X-Content-Type-Options
		X-Kubernetes-Pf-Flowschema-Uid X-Kubernetes-Pf-Prioritylevel-Uid`) {
		m[name] = strings.ToLower(name)
	}
	return m
}()

// noBody reports whether responses with the code have no body.
func noBody(code int) bool { return code == http.StatusNoContent || code == http.StatusNotModified }

// Write adds to the body.
func (r *response) Write(p []byte) (int, error) {
	switch {
	case r.finished:
		return 0, errFinished
	case r.code == 0:
		r.WriteHeader(http.StatusOK)
	}
	if noBody(r.code) {
		return 0, http.ErrBodyNotAllowed
	}
	if r.wrote += int64(len(p)); r.declared >= 0 && r.wrote > r.declared {
		return 0, http.ErrContentLength
	}
	if r.st.req.Method == http.MethodHead {
		return len(p), nil
	}
	if r.buf != nil && len(*r.buf)+len(p) > bodyBuffer {
		err := r.push(*r.buf, false)
		r.release()
		if err != nil {
			return 0, err
		}
	}
	if len(p) >= bodyBuffer {
		if err := r.push(p, false); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	if r.buf == nil {
		r.buf, _ = bodies.Get().(*[]byte)
	}
	*r.buf = append(*r.buf, p...)
	return len(p), nil
}

// release returns the buffer to the pool.
func (r *response) release() {
	if r.buf != nil {
		*r.buf = (*r.buf)[:0]
		bodies.Put(r.buf)
		r.buf = nil
	}
}

// push sends p, and the header if it was not sent yet.
func (r *response) push(p []byte, end bool) error {
	var head []field
	if !r.sent {
		r.sent = true
		head = r.head(p, end)
	}
	return r.st.c.send(r.st, head, p, end && len(r.trailers) == 0)
}

// head adds the fields that the handler has not set.
func (r *response) head(p []byte, end bool) []field {
	head := r.fields
	if r.sniff && len(p) > 0 {
		head = append(head, field{Name: "content-type", Value: http.DetectContentType(p)})
	}
	if size := r.wrote; r.declared < 0 && end && !noBody(r.code) && (size > 0 || r.st.req.Method != http.MethodHead) {
		head = append(head, field{Name: "content-length", Value: strconv.FormatInt(size, 10)})
	}
	if !r.dated {
		head = append(head, field{Name: "date", Value: now()})
	}
	return head
}

// Flush sends what has been written.
func (r *response) Flush() { _ = r.FlushError() } // callers that need the error call FlushError

// FlushError is Flush for http.ResponseController.
func (r *response) FlushError() error {
	if r.finished {
		return errFinished
	}
	if r.code == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.sent && r.buf == nil {
		return nil
	}
	var p []byte
	if r.buf != nil {
		p = *r.buf
	}
	err := r.push(p, false)
	r.release()
	return err
}

// finish sends the rest and ends the stream. A response shorter than its Content-Length is reset instead.
func (r *response) finish() {
	if r.code == 0 {
		r.WriteHeader(http.StatusOK)
	}
	for key := range r.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			r.trailers = append(r.trailers, http.CanonicalHeaderKey(name))
			r.header[http.CanonicalHeaderKey(name)] = r.header[key]
		}
	}
	var p []byte
	if r.buf != nil {
		p = *r.buf
	}
	if r.declared >= 0 && r.wrote < r.declared && r.st.req.Method != http.MethodHead && !noBody(r.code) {
		if r.push(p, false) == nil {
			r.st.abort(errAborted)
		}
		return
	}
	if err := r.push(p, true); err != nil || len(r.trailers) == 0 {
		return
	}
	var fields []field
	for _, name := range r.trailers {
		if httpguts.ValidTrailerHeader(name) {
			fields = appendFields(fields, name, r.header[name])
		}
	}
	r.st.c.sendTrailers(r.st, fields)
}

// SetReadDeadline is for http.ResponseController.
func (r *response) SetReadDeadline(t time.Time) error {
	r.st.readUntil(t)
	return nil
}

// SetWriteDeadline is for http.ResponseController.
func (r *response) SetWriteDeadline(t time.Time) error {
	r.st.sendUntil(t)
	return nil
}

// EnableFullDuplex is for http.ResponseController; HTTP/2 is always full duplex.
func (r *response) EnableFullDuplex() error { return nil }

// inform sends an informational response: 100, 103.
func (st *stream) inform(code int, header http.Header) {
	if code == http.StatusSwitchingProtocols {
		return
	}
	fields := []field{status(code)}
	for key, values := range header {
		switch key {
		case "Content-Length", "Connection", "Transfer-Encoding", "Trailer", "Upgrade", "Keep-Alive",
			"Proxy-Connection":
		default:
			fields = appendFields(fields, key, values)
		}
	}
	conn := st.c
	conn.mu.Lock()
	st.expects = st.expects && code != http.StatusContinue
	frame := conn.outflow.frame
	gone := st.err != nil
	conn.mu.Unlock()
	if gone {
		return
	}
	conn.out.enter()
	conn.out.header(st.id, fields, false, frame)
	conn.out.leave()
}

// sendTrailers ends a stream with fields, if there are any.
func (c *conn) sendTrailers(st *stream, fields []field) {
	if len(fields) == 0 {
		_ = c.send(st, nil, nil, true) // the handler has returned
		return
	}
	c.mu.Lock()
	frame := c.outflow.frame
	gone := st.err != nil
	st.answered = true
	c.mu.Unlock()
	if gone {
		return
	}
	c.out.enter()
	c.out.header(st.id, fields, true, frame)
	c.out.leave()
}

// now returns the time in the format of the Date header, computed once a second.
func now() string {
	t := time.Now()
	if d := lastDate.Load(); d != nil && d.unix == t.Unix() {
		return d.text
	}
	d := &date{t.Unix(), t.UTC().Format(http.TimeFormat)}
	lastDate.Store(d)
	return d.text
}

type date struct {
	unix int64
	text string
}

var lastDate atomic.Pointer[date]
