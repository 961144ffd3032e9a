// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"keelson/apiserver/fairness"
	"keelson/apiserver/resources"
	"keelson/store"
)

// withStorageMetrics wraps st to record the duration of each call as etcd_request_duration_seconds, the metric that
// dashboards use.
func withStorageMetrics(st store.Store) *measuredStore {
	return &measuredStore{
		Store: st,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds",
			Help: "Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{
				0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 4, 6, 8, 15, 30, 60,
			},
		}, []string{"operation", "group", "resource"}),
	}
}

type measuredStore struct {
	store.Store
	duration *prometheus.HistogramVec
}

func (m *measuredStore) observe(operation, key string, begin time.Time) {
	gr := resources.OfKey(key)
	m.duration.WithLabelValues(operation, gr.Group, gr.Resource).Observe(time.Since(begin).Seconds())
}

func (m *measuredStore) Get(ctx context.Context, key string, rev int64) (store.KV, int64, error) {
	defer m.observe("get", key, time.Now())
	return m.Store.Get(ctx, key, rev)
}

func (m *measuredStore) List(ctx context.Context, r store.Range) (store.Page, error) {
	defer m.observe("list", r.Prefix, time.Now())
	return m.Store.List(ctx, r)
}

func (m *measuredStore) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	defer m.observe("create", key, time.Now())
	return m.Store.Create(ctx, key, value)
}

func (m *measuredStore) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	defer m.observe("update", key, time.Now())
	return m.Store.Update(ctx, key, value, expected)
}

func (m *measuredStore) Delete(ctx context.Context, key string, expected int64) (store.KV, store.Written, error) {
	defer m.observe("delete", key, time.Now())
	return m.Store.Delete(ctx, key, expected)
}

// objectMetrics reports the number of objects.
type objectMetrics struct{ served *resources.Served }

var (
	objectsDesc = prometheus.NewDesc("apiserver_resource_objects",
		"Number of stored objects at the time of last check split by group and resource.",
		[]string{"group", "resource"}, nil)
	storedDesc = prometheus.NewDesc("apiserver_storage_objects",
		"Number of stored objects at the time of last check split by kind.",
		[]string{"resource"}, nil)
)

func (objectMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- objectsDesc
	ch <- storedDesc
}

func (m objectMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, res := range m.served.AllBuiltIn() {
		if res.Storage == nil || res.View != nil || res.Computed {
			continue
		}
		count, _ := res.Storage.Size()
		n := float64(count)
		gr := res.GroupResource()
		ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, n, gr.Group, gr.Resource)
		ch <- prometheus.MustNewConstMetric(storedDesc, prometheus.GaugeValue, n, gr.String())
	}
}

// fairnessMetrics reports the priority levels and the requests of FlowSchemas.
type fairnessMetrics struct{ f *fairness.Controller }

var (
	level = []string{"priority_level"}
	flow  = []string{"priority_level", "flow_schema"}

	seatsDesc = prometheus.NewDesc("apiserver_flowcontrol_nominal_limit_seats",
		"Nominal number of execution seats configured for each priority level", level, nil)
	currentDesc = prometheus.NewDesc("apiserver_flowcontrol_current_limit_seats",
		"current derived number of execution seats available to each priority level", level, nil)
	lowerLimitDesc = prometheus.NewDesc("apiserver_flowcontrol_lower_limit_seats",
		"Configured lower bound on number of execution seats available to each priority level", level, nil)
	upperLimitDesc = prometheus.NewDesc("apiserver_flowcontrol_upper_limit_seats",
		"Configured upper bound on number of execution seats available to each priority level", level, nil)
	usedDesc = prometheus.NewDesc("apiserver_flowcontrol_current_executing_seats",
		"Concurrency (number of seats) occupied by the currently executing requests", flow, nil)
	requestsDesc = prometheus.NewDesc("apiserver_flowcontrol_current_executing_requests",
		"Number of requests in initial or final execution stage", flow, nil)
	waitingDesc = prometheus.NewDesc("apiserver_flowcontrol_current_inqueue_requests",
		"Number of requests currently pending in queues of the API Priority and Fairness subsystem", flow, nil)
	servedDesc = prometheus.NewDesc("apiserver_flowcontrol_dispatched_requests_total",
		"Number of requests executed by API Priority and Fairness subsystem", flow, nil)
)

func (fairnessMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		seatsDesc, currentDesc, lowerLimitDesc, upperLimitDesc, usedDesc, requestsDesc, waitingDesc, servedDesc,
	} {
		ch <- d
	}
}

func (m fairnessMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, s := range m.f.Stats() {
		gauge(seatsDesc, s.Nominal, s.Level)
		gauge(currentDesc, max(s.Nominal, s.Executing), s.Level) // including borrowed seats
		gauge(lowerLimitDesc, s.LowerLimit, s.Level)
		gauge(upperLimitDesc, s.UpperLimit, s.Level)
	}
	for _, f := range m.f.SchemaStats() {
		gauge(usedDesc, f.Seats, f.Level, f.Schema)
		gauge(requestsDesc, f.Executing, f.Level, f.Schema)
		gauge(waitingDesc, f.Waiting, f.Level, f.Schema)
		ch <- prometheus.MustNewConstMetric(servedDesc, prometheus.CounterValue, float64(f.Dispatched), f.Level,
			f.Schema)
	}
}

// celMetrics are the CEL metrics of Kubernetes' libraries, which use a global registry.
var celMetrics = prometheus.GathererFunc(onlyNamed("apiserver_cel_", legacyregistry.DefaultGatherer.Gather))

// onlyNamed filters gather's metric families by name prefix.
func onlyNamed[F interface{ GetName() string }](prefix string, gather func() ([]F, error)) func() ([]F, error) {
	return func() ([]F, error) {
		all, err := gather()
		return slices.DeleteFunc(all, func(f F) bool { return !strings.HasPrefix(f.GetName(), prefix) }), err
	}
}
