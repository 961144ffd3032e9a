// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/warning"

	"keelson/auth"
	"keelson/event"
	"keelson/lib/connlimit"
)

// Request is the record of one request, filled in by the filters and the handler. Only Warn is safe for concurrent use.
type Request struct {
	Info
	User    *auth.User
	AuditID string
	Begin   time.Time
	// Mark collects the durations of the stages; observe emits it for writes, about Subject.
	Mark    event.Request
	Subject event.Subject
	// ExtraMarks are marks about other objects of the write. They get its time, and are emitted if it was stored.
	ExtraMarks []event.Event
	// Failure is why the request failed, for the event.
	Failure string

	limited
	impersonated
	origin
	audit *auditRecord

	mu       sync.Mutex
	warnings []string
	size     int
	ends     []func()
}

// limited is how the limits treat a request.
type limited struct {
	queued       time.Duration // wait for a seat
	terminated   bool          // rejected or ended by the server to protect itself
	releaseSeats func()        // releases the seat of a watch's initial events; nil: none
}

// impersonated is set if Request.User is not the one who asks.
type impersonated struct {
	impersonator *auth.User // the real user
	constraint   string     // the verb of the impersonation; empty: the unrestricted one
}

// origin is where a request comes from, if that is another request.
type origin struct {
	parent *Request // the request that this one is a part of; nil: none
	entry  entry    // the first filter, for further requests
	within *Request // the request whose handler makes this one (Further); nil: none
}

type requestKey struct{}

// From returns the record of the request of ctx; nil outside of the pipeline.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Part is the record of one of several parallel parts of a request: the same request with its own marks.
func (r *Request) Part() *Request {
	return &Request{
		Info:         r.Info,
		User:         r.User,
		AuditID:      r.AuditID,
		Begin:        r.Begin,
		audit:        r.audit,
		impersonated: r.impersonated,
		origin:       origin{parent: r},
	}
}

// Warn adds a warning header to the response. Duplicates are dropped, long texts cut, and the number is limited.
func (r *Request) Warn(text string) {
	if r.parent != nil {
		r.parent.Warn(text)
		return
	}
	const longest, most = 256, 4 << 10
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(text) > longest && r.size+len(text) > most {
		text = text[:longest]
	}
	if slices.Contains(r.warnings, text) || r.size+len(text) > most {
		return
	}
	r.size += len(text)
	r.warnings = append(r.warnings, text)
}

// AddWarning is Warn for Kubernetes' libraries, which find the request in the context.
func (r *Request) AddWarning(_, text string) {
	r.Warn(text)
}

// Warned reports whether the response will have warnings.
func (r *Request) Warned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.warnings) > 0
}

// Owner returns with whom the request shares what it takes: its user, unless a tenant impersonates that one.
func (r *Request) Owner() connlimit.Owner {
	if r.impersonator != nil {
		if owner := r.impersonator.Owner(); owner.Rank == connlimit.Tenant {
			return owner
		}
	}
	return r.User.Owner()
}

// OnEnd lets f run when the request's handler has returned.
func (r *Request) OnEnd(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, f)
}

// end runs what OnEnd was given.
func (r *Request) end() {
	r.mu.Lock()
	ends := r.ends
	r.ends = nil
	r.mu.Unlock()
	for _, f := range ends {
		f()
	}
}

// InitialEventsSent says that a watch has sent its initial events: from then on it only waits and needs no seat. It may
// be called twice.
func (r *Request) InitialEventsSent() {
	if r.releaseSeats != nil {
		r.releaseSeats()
	}
}

// parse creates the request's record, and wraps the response writer to add warnings and record the code.
func parse(_ *Config, next http.Handler) http.Handler { return entry{next} }

// entry is the first filter. Each request knows it, so that its handler can make further ones.
type entry struct{ next http.Handler }

type withinKey struct{}

// Further handles requests that the handler of r makes to answer it. Each passes all filters as the same user, so that
// it gets what the user could read, and nothing else. It runs in the seat of r: a question that waited for a seat
// while it holds one could wait for itself.
func (r *Request) Further() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, further *http.Request) {
		ctx := context.WithValue(auth.WithUser(further.Context(), r.User), withinKey{}, r)
		r.entry.ServeHTTP(w, further.WithContext(ctx))
	})
}

func (e entry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if fields := fieldsOf(r.Header); fields > maxFields {
		http.Error(w, http.StatusText(http.StatusRequestHeaderFieldsTooLarge),
			http.StatusRequestHeaderFieldsTooLarge)
		return
	}
	connlimit.Request(r.Context())
	rq := &Request{
		Info:    ParseInfo(r),
		Begin:   time.Now(),
		AuditID: r.Header.Get("Audit-Id"),
		origin:  origin{entry: e},
	}
	if within, ok := r.Context().Value(withinKey{}).(*Request); ok {
		rq.within = within
		rq.impersonated = within.impersonated
	}
	if rq.AuditID == "" {
		rq.AuditID = uuid.NewString()
	}
	w.Header().Set("Audit-Id", rq.AuditID)
	w.Header().Set("Cache-Control", "no-cache, private") // the default; a handler may replace it
	ctx := context.WithValue(r.Context(), requestKey{}, rq)
	ctx = warning.WithWarningRecorder(ctx, rq) // rules of custom resources warn through it
	e.next.ServeHTTP(&responseRecorder{ResponseWriter: w, rq: rq}, r.WithContext(ctx))
}

// maxFields limits the header fields of a request.
const maxFields = 4000

func fieldsOf(h http.Header) int {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	return n
}

// responseRecorder records the code and adds warnings before the header is sent.
type responseRecorder struct {
	http.ResponseWriter
	rq   *Request
	code int
	size int64 // of the body so far
}

func (a *responseRecorder) WriteHeader(code int) {
	// A proxied server may answer early (103). The code that counts is the last, and what ReverseProxy has removed from
	// the header by then is there again.
	early := code < http.StatusOK && code != http.StatusSwitchingProtocols
	if !early && a.Header().Get("Audit-Id") == "" {
		a.Header().Set("Audit-Id", a.rq.AuditID)
	}
	if a.code == 0 && !early {
		a.code = code
		a.rq.responseStarted(code)
		a.rq.mu.Lock()
		for _, text := range a.rq.warnings {
			if h, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
				a.Header().Add("Warning", h)
			}
		}
		a.rq.mu.Unlock()
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *responseRecorder) Write(b []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	n, err := a.ResponseWriter.Write(b)
	a.size += int64(n)
	return n, err
}

// Flush implements http.Flusher.
func (a *responseRecorder) Flush() {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(a.ResponseWriter).Flush() // a writer without Flush does not buffer
}

// Hijack implements http.Hijacker.
func (a *responseRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil && a.code == 0 {
		a.code = http.StatusSwitchingProtocols
	}
	return c, rw, err
}

// Unwrap supports http.ResponseController.
func (a *responseRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }
