// SPDX-License-Identifier: Apache-2.0

// Package pipeline is all that happens to a request before its handler: an
// ordered list of filters, read top to bottom in New. The server puts it in
// front of its handlers; requests from inside the process pass through it too.
// It knows no resource and touches no storage.
package pipeline

import (
	"log/slog"
	"net/http"
	"slices"
	"time"

	"keelson/apiserver/audit"
	"keelson/apiserver/fairness"
	"keelson/auth"
	"keelson/lib/mark"
)

// Config is what the filters need.
type Config struct {
	Authenticators []auth.Authenticator
	Authorizer     auth.Authorizer
	// MaxReads and MaxWrites bound the requests in flight (default 400 and 200); watches and other long-running ones do not count.
	MaxReads, MaxWrites int
	// MaxStreams bounds the requests under way that take a connection to somewhere else: exec, attach, port-forward, logs, proxies (default
	// 1000).
	MaxStreams int
	// Timeout bounds a request that is not long-running (default 60 s). ?timeout= may ask for less.
	Timeout time.Duration
	// MaxBody bounds a request's body in bytes (default 3 MiB).
	MaxBody int64
	// Fairness gives out seats to requests; nil: MaxReads and MaxWrites alone bound them. Cost estimates how many seats one takes.
	Fairness *fairness.Controller
	Cost     func(*Request) int
	// Audit records requests, Tracing makes spans of them; nil: neither.
	Audit   *audit.Auditor
	Tracing *Tracing
	Metrics *Metrics
	Marks   *mark.Recorder
	Log     *slog.Logger
}

// filter is one step; it calls next or answers itself.
type filter struct {
	name string
	wrap func(c *Config, next http.Handler) http.Handler
}

// filters in the order they run.
var filters = []filter{
	{"parse", parse},               // what is asked for; audit id; the request's record
	{"recover", recoverPanics},     // a panicking handler is a 500, not the end
	{"observe", observe},           // metrics, and the mark of a write
	{"trace", traceRequests},       // a span
	{"authenticate", authenticate}, // who asks: 401
	{"audit", auditRequests},       // who did what, for those who must know
	{"impersonate", impersonate},   // who they want to be: 403
	{"limit", limitInFlight},       // too many at once: 429
	{"deadline", deadline},         // not for ever: 504
	{"authorize", authorize},       // may they: 403
	{"limit body", limitBodySize},  // how much they may send: 413
}

// New puts the filters in front of final.
func New(c Config, final http.Handler) http.Handler {
	if c.MaxReads == 0 {
		c.MaxReads = 400
	}
	if c.MaxWrites == 0 {
		c.MaxWrites = 200
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 1000
	}
	if c.Timeout == 0 {
		c.Timeout = 60 * time.Second
	}
	if c.MaxBody == 0 {
		c.MaxBody = 3 << 20
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
	h := final
	for _, filter := range slices.Backward(filters) {
		h = filter.wrap(&c, h)
	}
	return h
}
