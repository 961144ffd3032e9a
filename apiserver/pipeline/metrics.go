// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/auth"
)

// Metrics are Kubernetes' request metrics.
type Metrics struct {
	Registry    *prometheus.Registry
	total       *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	sliDuration *prometheus.HistogramVec
	ended       *prometheus.CounterVec
	inflight    *prometheus.GaugeVec
	running     *prometheus.GaugeVec
	rejected    *prometheus.CounterVec
	waited      *prometheus.HistogramVec
	sizes       *prometheus.HistogramVec
	deprecated  *prometheus.GaugeVec
	events      *prometheus.CounterVec
	bytes       *prometheus.HistogramVec
	auths       authMetrics
}

// authMetrics are the metrics of authentication and authorization.
type authMetrics struct {
	attempts, authorized         *prometheus.CounterVec
	attemptsTook, authorizedTook *prometheus.HistogramVec
	users                        *prometheus.CounterVec
	certificates                 prometheus.Histogram
}

var latencies = []float64{
	0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
}

// The buckets of native histograms are as Kubernetes has them: each is at most 10 % wider than the one before it, and a
// histogram that would have more of them than the bound becomes coarser.
const (
	nativeFactor  = 1.1
	nativeBuckets = 160
)

// newHistogramVec returns histograms that are exported with their own buckets and, in protobuf, as native histograms,
// too: the feature gate NativeHistograms, which is on in v1.37.
func newHistogramVec(opts prometheus.HistogramOpts, labels []string) *prometheus.HistogramVec {
	opts.NativeHistogramBucketFactor = nativeFactor
	opts.NativeHistogramMaxBucketNumber = nativeBuckets
	return prometheus.NewHistogramVec(opts, labels)
}

// NewMetrics returns a registry with the request metrics.
func NewMetrics() *Metrics {
	labels := []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}
	metrics := &Metrics{
		Registry: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, " +
				"scope, component, and HTTP response code.",
		}, append(labels, "code")),
		duration: newHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds",
			Help: "Response latency distribution in seconds for each verb, dry run value, group, version, " +
				"resource, subresource, scope and component.",
			Buckets: latencies,
		}, labels),
		sliDuration: newHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_sli_duration_seconds",
			Help: "Response latency distribution (not counting priority and fairness queue wait times) in seconds " +
				"for each verb, group, version, resource, subresource, scope and component.",
			Buckets: latencies,
		}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_terminations_total",
			Help: "Number of requests which apiserver terminated in self-defense.",
		}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests",
			Help: "Maximal number of currently used inflight request limit of this apiserver per request kind in " +
				"last second.",
		}, []string{"request_kind"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, " +
				"scope and component. Not all requests are tracked this way.",
		}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_flowcontrol_rejected_requests_total",
			Help: "Number of requests rejected by API Priority and Fairness subsystem",
		}, []string{"priority_level", "flow_schema", "reason"}),
		waited: newHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_flowcontrol_request_wait_duration_seconds",
			Help:    "Length of time a request spent waiting in its queue",
			Buckets: []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30},
		}, []string{"priority_level", "flow_schema", "execute"}),
		auths: newAuthMetrics(),
	}
	metrics.newResponseMetrics()
	j := &metrics.auths
	metrics.Registry.MustRegister(metrics.total, metrics.duration, metrics.sliDuration, metrics.ended,
		metrics.inflight, metrics.running, metrics.rejected, metrics.waited,
		metrics.events, metrics.bytes, metrics.sizes, metrics.deprecated,
		j.attempts, j.authorized, j.attemptsTook, j.authorizedTook, j.users, j.certificates,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}

// newResponseMetrics creates the metrics of responses and watch events.
func (m *Metrics) newResponseMetrics() {
	kinds := []string{"group", "version", "resource"}
	m.events = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_watch_events_total",
		Help: "Number of events sent in watch clients",
	}, kinds)
	m.bytes = newHistogramVec(prometheus.HistogramOpts{
		Name:    "apiserver_watch_events_sizes",
		Help:    "Watch event size distribution in bytes",
		Buckets: prometheus.ExponentialBuckets(1024, 2, 8),
	}, kinds)
	m.sizes = newHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_response_sizes",
		Help: "Response size distribution in bytes for each group, version, verb, resource, subresource, scope " +
			"and component.",
		Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
	}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component"})
	m.deprecated = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "apiserver_requested_deprecated_apis",
		Help: "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, " +
			"subresource, and removed_release.",
	}, []string{"group", "version", "resource", "subresource", "removed_release"})
}

// Deprecated records a request for a deprecated resource.
func (m *Metrics) Deprecated(gvr schema.GroupVersionResource, subresource string) {
	m.deprecated.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource, subresource, "").Set(1)
}

func newAuthMetrics() authMetrics {
	const day = 24 * 60 * 60
	result := []string{"result"}
	return authMetrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authentication_attempts",
			Help: "Counter of authenticated attempts.",
		}, result),
		attemptsTook: newHistogramVec(prometheus.HistogramOpts{
			Name:    "authentication_duration_seconds",
			Help:    "Authentication duration in seconds broken out by result.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, result),
		authorized: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authorization_attempts_total",
			Help: "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', " +
				"'no-opinion' or 'error'.",
		}, result),
		authorizedTook: newHistogramVec(prometheus.HistogramOpts{
			Name:    "authorization_duration_seconds",
			Help:    "Authorization duration in seconds broken out by result.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, result),
		users: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authenticated_user_requests",
			Help: "Counter of authenticated requests broken out by username.",
		},
			[]string{"username"}),
		certificates: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "apiserver_client_certificate_expiration_seconds",
			Help: "Distribution of the remaining lifetime on the certificate used to " +
				"authenticate a request.",
			Buckets: []float64{
				0, 1800, 3600, 7200, 21600, 43200, day, 2 * day, 4 * day, 7 * day, 30 * day, 90 * day, 180 * day,
				360 * day,
			},
			NativeHistogramBucketFactor:    nativeFactor,
			NativeHistogramMaxBucketNumber: nativeBuckets,
		}),
	}
}

// WatchEvents returns the counter of a resource's watch events and the observer of their sizes.
func (m *Metrics) WatchEvents(gvr schema.GroupVersionResource) (prometheus.Counter, prometheus.Observer) {
	return m.events.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource),
		m.bytes.WithLabelValues(gvr.Group, gvr.Version, gvr.Resource)
}

// authenticated counts the result of an authentication.
func (m *Metrics) authenticated(r *http.Request, u *auth.User, err error, took time.Duration) {
	result := "success"
	switch {
	case err != nil:
		result = "error"
	case u == nil:
		result = "failure"
	default:
		m.auths.users.WithLabelValues(groupedName(u.Name)).Inc()
		if u.ByCertificate() && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			m.auths.certificates.Observe(time.Until(r.TLS.PeerCertificates[0].NotAfter).Seconds())
		}
	}
	m.auths.attempts.WithLabelValues(result).Inc()
	m.auths.attemptsTook.WithLabelValues(result).Observe(took.Seconds())
}

// groupedName limits the number of label values of user names.
func groupedName(name string) string {
	switch {
	case name == "admin" || name == "system:serviceaccount:kube-system:default":
		return name
	case strings.Contains(name, "@"):
		return "email_id"
	}
	return "other"
}

// decided counts an authorization decision.
func (m *Metrics) decided(d auth.Decision, err error, took time.Duration) {
	result := "no-opinion"
	switch {
	case d.Verdict == auth.Allow:
		result = "allowed"
	case err != nil:
		result = "error"
	case d.Verdict == auth.Deny:
		result = "denied"
	}
	m.auths.authorized.WithLabelValues(result).Inc()
	m.auths.authorizedTook.WithLabelValues(result).Observe(took.Seconds())
}

var reportedVerbs = map[string]string{
	"get":              "GET",
	"list":             "LIST",
	"watch":            "WATCH",
	"create":           "POST",
	"update":           "PUT",
	"patch":            "PATCH",
	"delete":           "DELETE",
	"deletecollection": "DELETECOLLECTION",
	"proxy":            "CONNECT",
}

// done counts a finished request.
func (m *Metrics) done(rq *Request, r *http.Request, code int, took time.Duration, size int64) {
	verb := reportedVerbs[rq.Verb]
	scope := scopeOf(rq)
	dry := ""
	switch {
	case !rq.IsResource:
		verb = reportedMethod(r.Method)
	case verb == "PATCH" && strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch"):
		verb = "APPLY"
	}
	if strings.Contains(r.URL.RawQuery, "dryRun=All") {
		dry = "All"
	}
	if code == 0 {
		code = http.StatusOK
	}
	labels := [9]string{verb, dry, rq.Group, rq.Version, rq.Resource, rq.Subresource, scope, "apiserver", strconv.Itoa(
		code)}
	if rq.IsResource && code >= http.StatusBadRequest && rq.Mark.Resource == "" {
		// No handler matched. Arbitrary resource names from clients must not become label values.
		labels[2] = ""
		labels[3] = ""
		labels[4] = ""
		labels[5] = ""
	}
	m.total.WithLabelValues(labels[:]...).Inc()
	if !rq.LongRunning() {
		m.duration.WithLabelValues(labels[:8]...).Observe(took.Seconds())
		m.sliDuration.WithLabelValues(labels[0], labels[2], labels[3], labels[4], labels[5], scope, "apiserver").
			Observe((took - rq.queued).Seconds())
	}
	if verb == "GET" || verb == "LIST" {
		m.sizes.WithLabelValues(labels[0], labels[2], labels[3], labels[4], labels[5], scope, "apiserver").Observe(
			float64(size))
	}
	if rq.terminated {
		m.ended.WithLabelValues(labels[0], labels[2], labels[3], labels[4], labels[5], scope, "apiserver", labels[8]).
			Inc()
	}
}

// reportedMethod prevents label values from arbitrary methods.
func reportedMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return method
	}
	return "other"
}

// scopeOf is the scope of a request: resource, namespace or cluster.
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
