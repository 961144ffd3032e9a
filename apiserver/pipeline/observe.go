// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/lib/mark"
)

// Metrics are the request metrics, by Kubernetes' names.
type Metrics struct {
	Registry *prometheus.Registry
	total    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
	running  *prometheus.GaugeVec
	rejected *prometheus.CounterVec
	events   *prometheus.CounterVec
}

// NewMetrics returns a registry with the request metrics in it.
func NewMetrics() *Metrics {
	labels := []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, append(labels, "code")),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, labels),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
		}, []string{"request_kind"}),
	}
	m.running = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "apiserver_longrunning_requests",
		Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
	}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component"})
	m.rejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_flowcontrol_rejected_requests_total", Help: "Number of requests rejected by API Priority and Fairness subsystem",
	}, []string{"priority_level", "flow_schema", "reason"})
	m.events = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_watch_events_total", Help: "Number of events sent in watch clients",
	}, []string{"group", "version", "resource"})
	m.Registry.MustRegister(m.total, m.took, m.inflight, m.running, m.rejected, m.events,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// WatchEvents counts the events that watches of a resource send.
func (m *Metrics) WatchEvents(gvr schema.GroupVersionResource) prometheus.Counter {
	return m.events.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource)
}

var shownVerbs = map[string]string{
	"get": "GET", "list": "LIST", "watch": "WATCH", "create": "POST", "update": "PUT", "patch": "PATCH",
	"delete": "DELETE", "deletecollection": "DELETECOLLECTION", "proxy": "CONNECT",
}

// done counts a finished request.
func (m *Metrics) done(rq *Request, r *http.Request, code int, took time.Duration) {
	verb, scope, dry := shownVerbs[rq.Verb], scopeOf(rq), ""
	switch {
	case !rq.IsResource:
		verb = strings.ToUpper(rq.Verb)
	case verb == "PATCH" && strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch"):
		verb = "APPLY"
	}
	if strings.Contains(r.URL.RawQuery, "dryRun=All") {
		dry = "All"
	}
	if code == 0 {
		code = http.StatusOK
	}
	labels := [9]string{verb, dry, rq.Group, rq.Version, rq.Resource, rq.Subresource, scope, "apiserver", strconv.Itoa(code)}
	if rq.IsResource && code == http.StatusNotFound && rq.Mark.Resource == "" {
		// Made-up resource names must not become label values for ever.
		labels[2], labels[3], labels[4], labels[5] = "", "", "", ""
	}
	m.total.WithLabelValues(labels[:]...).Inc()
	if !rq.LongRunning() {
		m.took.WithLabelValues(labels[:8]...).Observe(took.Seconds())
	}
}

// scopeOf tells whether a request is about one object, a namespace or the cluster.
func scopeOf(rq *Request) string {
	switch {
	case !rq.IsResource:
		return ""
	case rq.Name != "" || rq.Verb == "create":
		return "resource"
	case rq.Namespace != "":
		return "namespace"
	}
	return "cluster"
}

// observe counts every request and emits the mark of every write that reached its handler.
func observe(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		if rq.LongRunning() {
			verb, scope := shownVerbs[rq.Verb], scopeOf(rq)
			if verb == "" {
				verb = "CONNECT"
			}
			g := c.Metrics.running.WithLabelValues(verb, rq.Group, rq.Version, rq.Resource, rq.Subresource, scope, "apiserver")
			g.Inc()
			defer g.Dec()
		}
		next.ServeHTTP(w, r)
		took := time.Since(rq.Begin)
		code := http.StatusOK
		if a, ok := w.(*answer); ok {
			code = a.code
		}
		c.Metrics.done(rq, r, code, took)
		if c.Marks == nil || !rq.IsResource || rq.ReadOnly() || rq.LongRunning() || rq.User == nil {
			return
		}
		m := rq.Mark
		m.Verb, m.Group, m.Resource, m.Subresource = r.Method, rq.Group, rq.Resource, rq.Subresource
		m.User, m.UserAgent, m.AuditID, m.Code = rq.User.Name, r.UserAgent(), rq.AuditID, code
		s := rq.Subject
		if s.Resource == "" {
			s = mark.Subject{Resource: rq.Resource, Namespace: rq.Namespace, Name: rq.Name}
		}
		c.Marks.Emit(mark.Mark{Step: mark.StepRequest, Component: "apiserver", At: rq.Begin, Took: took, Subject: s, Err: rq.Failure, Detail: &m})
	})
}

// recoverPanics answers 500 when a handler panics, and logs where.
func recoverPanics(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // the way a proxy gives up on a half-sent answer
			}
			c.Log.Error("handler panicked", "method", r.Method, "path", r.URL.Path, "audit", From(r.Context()).AuditID,
				"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
