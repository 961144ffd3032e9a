// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// responseTimeout is how long a command waits for a server: for the response header, or for more of the body.
const responseTimeout = 5 * time.Second

// limitSilence makes requests of cfg fail with one sentence if the server sends nothing for that long.
func limitSilence(cfg *rest.Config, wait time.Duration) {
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &silenceTransport{rt, wait} })
}

// silentError says that the server did not answer in time.
type silentError struct {
	host string
	wait time.Duration
}

func (e *silentError) Error() string {
	return fmt.Sprintf("the API server at %s has been silent for %s: it is stopped, overloaded or unreachable "+
		"(`keelson status`, `keelson logs`)", e.host, e.wait)
}

type silenceTransport struct {
	rt   http.RoundTripper
	wait time.Duration
}

// RoundTrip implements http.RoundTripper. A following response (follow=true) may pause once it has begun.
func (t *silenceTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	silent := &silentError{req.URL.Host, t.wait}
	timer := time.AfterFunc(t.wait, func() { cancel(silent) })
	resp, err := t.rt.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(nil)
		if errors.Is(context.Cause(ctx), silent) {
			err = silent
		}
		return nil, err
	}
	b := &timedBody{
		ReadCloser: resp.Body,
		ctx:        ctx,
		cancel:     cancel,
		silent:     silent,
	}
	if req.URL.Query().Get("follow") != "true" {
		b.timer = timer
	}
	resp.Body = b
	return resp, nil
}

// timedBody is a response body that must not pause for too long.
type timedBody struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // the request's, to find the cause of its end
	cancel context.CancelCauseFunc
	silent *silentError
	timer  *time.Timer // nil: no limit
}

// Read implements io.ReadCloser.
func (b *timedBody) Read(p []byte) (int, error) {
	if b.timer != nil {
		b.timer.Reset(b.silent.wait)
		defer b.timer.Stop()
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && errors.Is(context.Cause(b.ctx), b.silent) {
		err = b.silent
	}
	return n, err
}

// Close implements io.ReadCloser.
func (b *timedBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}
