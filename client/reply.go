// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// reply is the handler's ResponseWriter where no one reads before the handler is done.
type reply struct {
	header http.Header
	code   int // 0 until the header is written
	body   []byte
}

// serve runs the handler to its end.
func (a *reply) serve(handler http.Handler, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler || a.code != 0 { //nolint:errorlint // a panic value, compared as net/http does
				err = io.ErrUnexpectedEOF
				return
			}
			clear(a.header)
			http.Error(a, fmt.Sprintf("handler panicked: %v", p), http.StatusInternalServerError)
		}
	}()
	handler.ServeHTTP(a, r)
	a.WriteHeader(http.StatusOK) // if it did not
	return nil
}

func (a *reply) Header() http.Header { return a.header }

// WriteHeader fixes the code; informational codes are dropped.
func (a *reply) WriteHeader(code int) {
	if a.code == 0 && code >= http.StatusOK {
		a.code = code
	}
}

// Write keeps b.
func (a *reply) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.body = append(a.body, b...)
	return len(b), nil
}

// Flush does nothing: no one reads yet. So it is with deadlines, which are for slow clients.
func (a *reply) Flush() {}

// SetReadDeadline is http.ResponseController's.
func (a *reply) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is http.ResponseController's.
func (a *reply) SetWriteDeadline(time.Time) error { return nil }

// EnableFullDuplex is http.ResponseController's.
func (a *reply) EnableFullDuplex() error { return nil }

// answered is the outcome of a request that was made already, for the transport to give to client-go.
type answered struct {
	*reply
	err   error // that the answer ends with; nil: it is whole
	taken atomic.Bool
}

type answeredKey struct{}

// alreadyAnswered is the answer that r's client has got already; nil: r is still to be made. It can be had once, for
// client-go may try again.
func alreadyAnswered(ctx context.Context) *answered {
	a, _ := ctx.Value(answeredKey{}).(*answered)
	if a == nil || a.taken.Swap(true) {
		return nil
	}
	return a
}

func (a *answered) response(r *http.Request) (*http.Response, error) {
	if a.code == 0 && a.err != nil && r.Context().Err() != nil {
		return nil, a.err // the handler gave up with its context before it said anything
	}
	var body io.Reader = bytes.NewReader(a.body)
	if a.err != nil {
		body = io.MultiReader(body, broken{a.err})
	}
	code := cmp.Or(a.code, http.StatusOK)
	return &http.Response{
		StatusCode:    code,
		Status:        strconv.Itoa(code) + " " + http.StatusText(code),
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        a.header,
		ContentLength: -1,
		Request:       r,
		Body:          io.NopCloser(body),
	}, nil
}

// broken is where an answer breaks off.
type broken struct{ err error }

// Read is io.Reader's.
func (b broken) Read([]byte) (int, error) { return 0, b.err }
