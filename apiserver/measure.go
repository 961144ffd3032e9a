// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/apiserver/fairness"
	"keelson/store"
)

// measured is st with the time of each call in etcd_request_duration_seconds, the name that dashboards know.
func measured(st store.Store, r *prometheus.Registry) store.Store {
	m := &measuredStore{Store: st, took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "etcd_request_duration_seconds",
		Help:    "Etcd request latency in seconds for each operation and object type.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 4, 6, 8, 15, 30, 60},
	}, []string{"operation", "group", "resource"})}
	r.MustRegister(m.took)
	return m
}

type measuredStore struct {
	store.Store
	took *prometheus.HistogramVec
}

func (m *measuredStore) note(operation, key string, begin time.Time) {
	gr := ResourceOf(key)
	m.took.WithLabelValues(operation, gr.Group, gr.Resource).Observe(time.Since(begin).Seconds())
}

func (m *measuredStore) Get(ctx context.Context, key string, rev int64) (store.KV, int64, error) {
	defer m.note("get", key, time.Now())
	return m.Store.Get(ctx, key, rev)
}

func (m *measuredStore) List(ctx context.Context, r store.Range) (store.Page, error) {
	defer m.note("list", r.Prefix, time.Now())
	return m.Store.List(ctx, r)
}

func (m *measuredStore) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	defer m.note("create", key, time.Now())
	return m.Store.Create(ctx, key, value)
}

func (m *measuredStore) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	defer m.note("update", key, time.Now())
	return m.Store.Update(ctx, key, value, expected)
}

func (m *measuredStore) Delete(ctx context.Context, key string, expected int64) (store.KV, store.Written, error) {
	defer m.note("delete", key, time.Now())
	return m.Store.Delete(ctx, key, expected)
}

// objectMetrics counts the objects there are, when it is asked.
type objectMetrics struct{ s *Server }

var (
	objectsDesc = prometheus.NewDesc("apiserver_resource_objects", "Number of stored objects at the time of last check split by group and resource.",
		[]string{"group", "resource"}, nil)
	storedDesc = prometheus.NewDesc("apiserver_storage_objects", "Number of stored objects at the time of last check split by kind.",
		[]string{"resource"}, nil)
)

func (objectMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- objectsDesc
	ch <- storedDesc
}

func (m objectMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, res := range m.s.resources {
		counted, ok := res.Storage.(interface{ Count() int })
		if !ok || res.View != nil {
			continue
		}
		n := float64(counted.Count())
		gr := res.GroupResource()
		ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, n, gr.Group, gr.Resource)
		ch <- prometheus.MustNewConstMetric(storedDesc, prometheus.GaugeValue, n, gr.String())
	}
}

// fairnessMetrics shows the priority levels.
type fairnessMetrics struct{ f *fairness.Controller }

var (
	level       = []string{"priority_level"}
	seatsDesc   = prometheus.NewDesc("apiserver_flowcontrol_nominal_limit_seats", "Nominal number of execution seats configured for each priority level", level, nil)
	usedDesc    = prometheus.NewDesc("apiserver_flowcontrol_current_executing_seats", "Concurrency (number of seats) occupied by the currently executing requests", level, nil)
	waitingDesc = prometheus.NewDesc("apiserver_flowcontrol_current_inqueue_requests", "Number of requests currently pending in queues of the API Priority and Fairness subsystem", level, nil)
	servedDesc  = prometheus.NewDesc("apiserver_flowcontrol_dispatched_requests_total", "Number of requests executed by API Priority and Fairness subsystem", level, nil)
)

func (fairnessMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{seatsDesc, usedDesc, waitingDesc, servedDesc} {
		ch <- d
	}
}

func (m fairnessMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.f.Stats() {
		ch <- prometheus.MustNewConstMetric(seatsDesc, prometheus.GaugeValue, float64(s.Nominal), s.Level)
		ch <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(s.Executing), s.Level)
		ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(s.Waiting), s.Level)
		ch <- prometheus.MustNewConstMetric(servedDesc, prometheus.CounterValue, float64(s.Dispatched), s.Level)
	}
}
