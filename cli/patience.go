// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// patience is how long a command waits for a server that says nothing: the beginning of an answer, or more of it.
const patience = 5 * time.Second

// impatient makes requests of cfg fail with a sentence when the server is silent for that long.
func impatient(cfg *rest.Config, wait time.Duration) {
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &impatientTransport{rt, wait} })
}

// silentError says that a server took a connection, or did not even refuse it, and answers nothing.
type silentError struct {
	host string
	wait time.Duration
}

func (e *silentError) Error() string {
	return fmt.Sprintf("the API server at %s has been silent for %s: it is stopped, overloaded or unreachable (`keelson status`, `keelson logs`)", e.host, e.wait)
}

type impatientTransport struct {
	rt   http.RoundTripper
	wait time.Duration
}

// RoundTrip is part of http.RoundTripper. What follows (follow=true) may be silent once it has begun.
func (t *impatientTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	silent := &silentError{req.URL.Host, t.wait}
	timer := time.AfterFunc(t.wait, func() { cancel(silent) })
	resp, err := t.rt.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(nil)
		if context.Cause(ctx) == error(silent) {
			err = silent
		}
		return nil, err
	}
	b := &impatientBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, silent: silent}
	if req.URL.Query().Get("follow") != "true" {
		b.timer = timer
	}
	resp.Body = b
	return resp, nil
}

// impatientBody is an answer of which more must come in time.
type impatientBody struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // the request's, for what ended it
	cancel context.CancelCauseFunc
	silent *silentError
	timer  *time.Timer // nil: as long as it takes
}

// Read is part of io.ReadCloser.
func (b *impatientBody) Read(p []byte) (int, error) {
	if b.timer != nil {
		b.timer.Reset(b.silent.wait)
		defer b.timer.Stop()
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && context.Cause(b.ctx) == error(b.silent) {
		err = b.silent
	}
	return n, err
}

// Close is part of io.ReadCloser.
func (b *impatientBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}
