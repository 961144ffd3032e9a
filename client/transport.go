// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// transport is an http.RoundTripper that calls a handler in this process. The answer streams: a watch's frames arrive
// as the handler flushes them; a short answer arrives at once when the handler is done. Cancelling the request's
// context, or closing the answer's body, ends the handler's context; a handler that panics is answered 500.
type transport struct{ h http.Handler }

// RoundTrip returns when the handler has flushed, returned or filled the buffer.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, errors.Join(err, closeBody(r))
	}
	if a := alreadyAnswered(r.Context()); a != nil {
		_ = closeBody(r) // read from memory
		return a.response(r)
	}
	ctx, cancel := context.WithCancel(r.Context())
	answer := newAnswer(r, cancel)
	if !streams(r) { // on the caller's goroutine, whose stack has grown already
		answer.whole = true
		answer.serve(t.h, inbound(r, ctx))
		cancel()
		return answer.outcome(r)
	}
	go func() { // ends when the handler returns, which its context makes it do
		defer cancel()
		answer.serve(t.h, inbound(r, ctx))
	}()
	select {
	case <-answer.ready:
	case <-ctx.Done():
		select {
		case <-answer.ready: // the handler was quick and its context is over for that reason alone
		default:
			answer.abandon(ctx.Err())
			return nil, ctx.Err()
		}
	}
	return answer.outcome(r)
}

// streams reports whether the answer may arrive piece by piece, or go both ways. Everything else is answered in one
// piece.
func streams(r *http.Request) bool {
	if r.Method == http.MethodPut || r.Method == http.MethodPatch || r.Method == http.MethodDelete {
		return strings.Contains(r.URL.Path, "/proxy")
	}
	if strings.Contains(r.URL.RawQuery, "watch=") || strings.HasSuffix(r.URL.Path, "/log") ||
		strings.Contains(r.URL.Path, "/watch/") {
		return true
	}
	resource := strings.HasPrefix(r.URL.Path, "/api/") || strings.HasPrefix(r.URL.Path, "/apis/")
	return !resource || r.Header.Get("Upgrade") != "" || strings.Contains(r.URL.Path, "/proxy") ||
		strings.HasSuffix(r.URL.Path, "/exec") || strings.HasSuffix(r.URL.Path, "/attach") ||
		strings.HasSuffix(r.URL.Path, "/portforward")
}

func closeBody(r *http.Request) error {
	if r.Body == nil {
		return nil
	}
	return r.Body.Close()
}

// inbound is r as a server would see it; r itself belongs to the caller.
func inbound(r *http.Request, ctx context.Context) *http.Request { //nolint:revive // the request is what this is about
	in := r.Clone(ctx)
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if in.Host == "" {
		in.Host = in.URL.Host
	}
	in.RequestURI = in.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Proto = "HTTP/2.0"
	in.ProtoMajor = 2
	in.ProtoMinor = 0
	return in
}

// bufferSize is how much a handler may write ahead of its reader.
const bufferSize = 64 << 10

// answer is the handler's ResponseWriter on one side and the client's body on the other.
type answer struct {
	header http.Header
	head   bool // a HEAD request has no body
	whole  bool // the reader begins when the handler is done: writing never waits
	ready  chan struct{}
	cancel context.CancelFunc

	mu     sync.Mutex
	change sync.Cond
	code   int // 0 until the header is written
	sent   http.Header
	isOut  bool // ready is closed
	buf    []byte
	read   int   // of buf
	end    error // what the reader gets after buf: io.EOF when the handler is done
	gone   error // the reader has left; what the writer gets
	unsaid error // the handler gave up with its context before it said anything: there is no answer
	after  http.Header
}

func newAnswer(r *http.Request, cancel context.CancelFunc) *answer {
	a := &answer{
		header: http.Header{},
		head:   r.Method == http.MethodHead,
		ready:  make(chan struct{}),
		cancel: cancel,
		after:  http.Header{},
	}
	a.change.L = &a.mu
	return a
}

// serve runs the handler to its end.
func (a *answer) serve(handler http.Handler, r *http.Request) {
	end := io.EOF
	defer func() {
		if p := recover(); p != nil {
			end = a.panicked(p)
		}
		_ = r.Body.Close()                                         // the handler is done with it
		if err := r.Context().Err(); err != nil && end == io.EOF { //nolint:errorlint // set above
			end = err // it gave up: what the reader has is not the whole answer
		}
		a.finish(end)
	}()
	handler.ServeHTTP(a, r)
}

// panicked answers 500 if nothing was said yet, else breaks off the answer.
func (a *answer) panicked(p any) error {
	if p == http.ErrAbortHandler { //nolint:errorlint // a panic value, compared as net/http does
		return io.ErrUnexpectedEOF
	}
	a.mu.Lock()
	begun := a.code != 0
	a.mu.Unlock()
	if begun {
		return fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
	}
	clear(a.header)
	http.Error(a, fmt.Sprintf("handler panicked: %v", p), http.StatusInternalServerError)
	return io.EOF
}

func (a *answer) finish(end error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.code == 0 && (errors.Is(end, context.Canceled) || errors.Is(end, context.DeadlineExceeded)) {
		a.unsaid = end
	}
	a.writeHeaderLocked(http.StatusOK)
	a.end = end
	for k, v := range a.header {
		if name, ok := strings.CutPrefix(k, http.TrailerPrefix); ok {
			a.after[name] = v
		}
	}
	for _, names := range a.sent.Values("Trailer") {
		for name := range strings.SplitSeq(names, ",") {
			if k := http.CanonicalHeaderKey(strings.TrimSpace(name)); a.header[k] != nil {
				a.after[k] = a.header[k]
			}
		}
	}
	a.outLocked()
	a.change.Broadcast()
}

func (a *answer) Header() http.Header { return a.header }

// WriteHeader fixes code and header; informational codes are dropped.
func (a *answer) WriteHeader(code int) {
	if code < http.StatusOK {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeaderLocked(code)
}

func (a *answer) writeHeaderLocked(code int) {
	if a.code == 0 {
		a.code = code
		a.sent = a.header.Clone()
	}
}

func (a *answer) outLocked() {
	if !a.isOut {
		a.isOut = true
		close(a.ready)
	}
}

// Write buffers; it waits only when the reader is a whole buffer behind.
func (a *answer) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeaderLocked(http.StatusOK)
	if a.head {
		return len(b), nil
	}
	for !a.whole && len(a.buf)-a.read >= bufferSize && a.gone == nil {
		a.outLocked()
		a.change.Wait()
	}
	if a.gone != nil {
		return 0, a.gone
	}
	if a.read > bufferSize { // a reader that never quite catches up must not make the buffer grow
		a.buf = a.buf[:copy(a.buf, a.buf[a.read:])]
		a.read = 0
	}
	a.buf = append(a.buf, b...)
	if a.isOut {
		a.change.Broadcast()
	}
	return len(b), nil
}

// Flush hands what is written to the client.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is Flush for http.ResponseController.
func (a *answer) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeaderLocked(http.StatusOK)
	a.outLocked()
	a.change.Broadcast()
	return a.gone
}

// SetReadDeadline, SetWriteDeadline and EnableFullDuplex let http.ResponseController work as over a network: a request
// in memory reads and writes at once anyway, and its context bounds it.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

// EnableFullDuplex does nothing.
func (a *answer) EnableFullDuplex() error { return nil }

// abandon ends the handler's writes: the reader is gone.
func (a *answer) abandon(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone == nil {
		a.gone = why
	}
	a.change.Broadcast()
}

// outcome is what the client gets.
func (a *answer) outcome(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	unsaid := a.unsaid
	a.mu.Unlock()
	if unsaid != nil {
		return nil, unsaid
	}
	return a.response(r), nil
}

// response is the client's view of the answer.
func (a *answer) response(r *http.Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := &http.Response{
		StatusCode:    a.code,
		Status:        strconv.Itoa(a.code) + " " + http.StatusText(a.code),
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        a.sent,
		ContentLength: -1,
		Request:       r,
		Trailer:       a.after,
	}
	if n, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		res.ContentLength = n
	} else if a.end == io.EOF { //nolint:errorlint // set by serve, never wrapped
		res.ContentLength = int64(len(a.buf))
	}
	stop := func() bool { return true }
	if ctx := r.Context(); !a.whole {
		stop = context.AfterFunc(ctx, func() { a.interrupt(context.Cause(ctx)) })
	}
	res.Body = &body{answer: a, stop: stop}
	return res
}

// interrupt makes the reader return; what the handler wrote before it is still read.
func (a *answer) interrupt(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end == nil {
		a.end = why
	}
	if a.gone == nil {
		a.gone = why
	}
	a.change.Broadcast()
}

// body is the client's side.
type body struct {
	*answer
	stop func() bool
	once sync.Once
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.read == len(b.buf) && b.end == nil && b.gone == nil {
		b.change.Wait()
	}
	if b.read < len(b.buf) {
		n := copy(p, b.buf[b.read:])
		b.read += n
		if b.read == len(b.buf) {
			b.buf = b.buf[:0]
			b.read = 0
		}
		b.change.Broadcast()
		return n, nil
	}
	if b.end != nil {
		return 0, b.end
	}
	return 0, b.gone
}

// Close ends the handler.
func (b *body) Close() error {
	b.once.Do(func() {
		b.stop()
		b.abandon(errors.New("the client has closed the answer"))
		b.cancel()
	})
	return nil
}
