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

	"keelson/auth"
	"keelson/lib/connlimit"
	"keelson/lib/mark"
)

// Request is the record of one request; filters and the handler fill it in. Only Warn may be called from several goroutines.
type Request struct {
	Info
	User    *auth.User
	AuditID string
	Begin   time.Time
	// Mark collects what each stage took; observe emits it for writes, about Subject.
	Mark    mark.Request
	Subject mark.Subject
	// Further are marks of other objects that the write is about. They get its time, and are emitted if it was stored.
	Further []mark.Mark
	// Failure is why the request failed, for the mark.
	Failure string

	queued time.Duration // waited for a seat
	ended  bool          // refused or cut off in self-defense
	begun  func()        // gives back the seat that a watch's beginning takes; nil: it has none

	audit        *record
	impersonator *auth.User // who really asked, where User is somebody else
	constraint   string     // the verb that allowed it; empty: one that allows everything
	whole        *Request   // the request that this one is a part of; nil: of none

	mu       sync.Mutex
	warnings []string
	size     int
}

type requestKey struct{}

// From returns the record of the request that ctx belongs to; nil outside of the pipeline.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Part is the record of one of the things that a request does at once: the same request, with marks of its own.
func (r *Request) Part() *Request {
	return &Request{Info: r.Info, User: r.User, AuditID: r.AuditID, Begin: r.Begin, audit: r.audit, impersonator: r.impersonator, constraint: r.constraint, whole: r}
}

// Warn adds a warning header to the answer. Each text is sent once, long ones are cut, and there is an end to how many.
func (r *Request) Warn(text string) {
	if r.whole != nil {
		r.whole.Warn(text)
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

// Warned tells whether there are warnings that the answer will carry.
func (r *Request) Warned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.warnings) > 0
}

// Begun tells that a watch has sent what there was at its beginning: from now on it only waits, which takes no seat. It may be called
// again.
func (r *Request) Begun() {
	if r.begun != nil {
		r.begun()
	}
}

// parse makes the request's record and hands the answer a writer that adds warnings and remembers the code.
func parse(_ *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fields := fieldsOf(r.Header); fields > maxFields {
			http.Error(w, http.StatusText(http.StatusRequestHeaderFieldsTooLarge), http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		connlimit.Reach(r.Context(), connlimit.Anonymous)
		rq := &Request{Info: ParseInfo(r), Begin: time.Now(), AuditID: r.Header.Get("Audit-Id")}
		if rq.AuditID == "" {
			rq.AuditID = uuid.NewString()
		}
		w.Header().Set("Audit-Id", rq.AuditID)
		w.Header().Set("Cache-Control", "no-cache, private") // for a handler that knows better to replace
		next.ServeHTTP(&answer{ResponseWriter: w, rq: rq}, r.WithContext(context.WithValue(r.Context(), requestKey{}, rq)))
	})
}

// maxFields bounds how many header fields a request may have.
const maxFields = 4000

func fieldsOf(h http.Header) int {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	return n
}

// answer remembers the code and adds warnings before the header goes out.
type answer struct {
	http.ResponseWriter
	rq   *Request
	code int
	size int64 // of the body so far
}

func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
		a.rq.headerOut(code)
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

func (a *answer) Write(b []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	n, err := a.ResponseWriter.Write(b)
	a.size += int64(n)
	return n, err
}

// Flush sends what has been written so far.
func (a *answer) Flush() {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(a.ResponseWriter).Flush() // a writer that cannot flush does not buffer
}

// Hijack takes over the connection, for upgrades.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil && a.code == 0 {
		a.code = http.StatusSwitchingProtocols
	}
	return c, rw, err
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
