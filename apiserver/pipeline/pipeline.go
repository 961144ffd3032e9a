// SPDX-License-Identifier: Apache-2.0

// Package pipeline handles every request before its handler: an ordered list of filters, to be read top to bottom in
// New. The API server puts it in front of its handlers; in-process requests pass through it too. It knows no resource
// and never touches storage.
package pipeline

import (
	"log/slog"
	"net/http"
	"slices"
	"time"

	"keelson/apiserver/audit"
	"keelson/apiserver/fairness"
	"keelson/auth"
	"keelson/event"
)

// Config holds the dependencies and limits of the filters.
type Config struct {
	Authenticators []auth.Authenticator
	Authorizer     auth.Authorizer
	// MaxReads and MaxWrites limit the requests in flight (default 400 and 200), without watches and other long-running
	// ones.
	MaxReads, MaxWrites int
	// MaxStreams limits the running requests that are proxied to another server: exec, attach, port-forward, logs,
	// proxies (default 1000).
	MaxStreams int
	// MaxTenantWatches limits the watches of all users that are no administrators, nodes or components; one of them, or
	// the service accounts of a namespace, may have a quarter, and half while others need none (default 20,000).
	MaxTenantWatches int
	// Timeout limits a request that is not long-running (default 60 s). ?timeout= may shorten it.
	Timeout time.Duration
	// MaxBody limits a request's body in bytes (default 3 MiB).
	MaxBody int64
	// Fairness assigns seats to requests; nil: only MaxReads and MaxWrites apply. Cost estimates a request's seats.
	Fairness *fairness.Controller
	Cost     func(*Request) int
	// Audit records requests, Tracing exports spans; both may be nil.
	Audit   *audit.Auditor
	Tracing *Tracing
	Metrics *Metrics
	Marks   *event.Recorder
	Log     *slog.Logger
}

// filter is one step; it calls next or writes the response itself.
type filter struct {
	name string
	wrap func(c *Config, next http.Handler) http.Handler
}

// filters in the order in which they run.
var filters = []filter{
	{"parse", parse},               // request info, audit ID, the request's record
	{"recover", recoverPanics},     // a panic becomes a 500
	{"observe", observe},           // metrics, and the mark of a write
	{"trace", traceRequests},       // one span per request
	{"authenticate", authenticate}, // the user, or 401
	{"audit", auditRequests},       // the audit log
	{"impersonate", impersonate},   // the impersonated user, or 403
	{"limit", limitInFlight},       // too many requests: 429
	{"deadline", deadline},         // the time-out: 504
	{"authorize", authorize},       // the decision, or 403
	{"limit body", limitBodySize},  // the maximum body size: 413
}

// New wraps final in the filters.
func New(config Config, final http.Handler) http.Handler {
	if config.MaxReads == 0 {
		config.MaxReads = 400
	}
	if config.MaxWrites == 0 {
		config.MaxWrites = 200
	}
	if config.MaxStreams == 0 {
		config.MaxStreams = 1000
	}
	if config.MaxTenantWatches == 0 {
		config.MaxTenantWatches = 20_000
	}
	if config.Timeout == 0 {
		config.Timeout = 60 * time.Second
	}
	if config.MaxBody == 0 {
		config.MaxBody = 3 << 20
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Metrics == nil {
		config.Metrics = NewMetrics()
	}
	h := final
	for _, filter := range slices.Backward(filters) {
		h = filter.wrap(&config, h)
	}
	return h
}
