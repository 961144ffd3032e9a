// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"keelson/event"
)

// observe counts every request and emits the mark of every write that reached its handler.
func observe(config *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		if rq.LongRunning() {
			verb := reportedVerbs[rq.Verb]
			scope := scopeOf(rq)
			if verb == "" {
				verb = "CONNECT"
			}
			g := config.Metrics.running.WithLabelValues(verb, rq.Group, rq.Version, rq.Resource, rq.Subresource, scope,
				"apiserver")
			g.Inc()
			defer g.Dec()
		}
		next.ServeHTTP(w, r)
		took := time.Since(rq.Begin)
		code := http.StatusOK
		size := int64(0)
		if a, ok := w.(*responseRecorder); ok {
			code = a.code
			size = a.size
		}
		config.Metrics.done(rq, r, code, took, size)
		if config.Marks == nil || !rq.IsResource || rq.ReadOnly() || rq.LongRunning() || rq.User == nil {
			return
		}
		request := rq.Mark
		request.Code = code
		describe(&request, rq, r)
		s := rq.Subject
		if s.Resource == "" {
			s = event.Subject{Resource: rq.Resource, Namespace: rq.Namespace, Name: rq.Name}
		}
		config.Marks.Emit(event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        rq.Begin,
			Took:      took,
			Subject:   s,
			Err:       rq.Failure,
			Detail:    &request,
		})
		if request.Revision == 0 {
			return
		}
		for _, f := range rq.ExtraMarks {
			f.Component = "apiserver"
			f.At = rq.Begin
			f.Took = took
			switch d := f.Detail.(type) {
			case *event.Endpoint:
				d.Revision = request.Revision
			case *event.Request:
				describe(d, rq, r)
			}
			config.Marks.Emit(f)
		}
	})
}

// describe sets who asked for what.
func describe(mark *event.Request, rq *Request, r *http.Request) {
	mark.Verb = r.Method
	mark.Group = rq.Group
	mark.Resource = rq.Resource
	mark.Subresource = rq.Subresource
	mark.User = rq.User.Name
	mark.UserAgent = r.UserAgent()
	mark.AuditID = rq.AuditID
}

// recoverPanics responds with 500 when a handler panics, and logs the stack.
func recoverPanics(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // httputil.ReverseProxy aborts a partly sent response this way
			}
			c.Log.Error("handler panicked", "method", r.Method, "path", r.URL.Path, "audit", From(r.Context()).AuditID,
				"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			http.Error(w, "This request caused apiserver to panic. Look in the logs for details.",
				http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
