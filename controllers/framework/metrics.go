// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/lib/keyed"
)

// QueueMetrics are Kubernetes' workqueue_* metrics of the loops that get them.
type QueueMetrics struct {
	retries        *prometheus.CounterVec
	waited, worked *prometheus.HistogramVec
	// Collect computes these.
	depth, adds, unfinished, longest *prometheus.Desc

	mu      sync.Mutex
	running map[runningLoop]struct{}
	ended   map[string]int64 // passes of loops that ended, by name
}

type runningLoop interface {
	// load returns the loop's name, its load, and how many passes have begun.
	load(now time.Time) (name string, load keyed.Load, begun int64)
}

func (l *Loop[K]) load(now time.Time) (name string, load keyed.Load, begun int64) {
	return l.name, l.queue.Load(now), l.begun.Load()
}

// Queue names a loop in metrics and messages.
type Queue struct {
	Name string
	// Metrics count the loop's work; nil: nothing shows it.
	Metrics *QueueMetrics
}

// NewQueueMetrics returns metrics without a loop.
func NewQueueMetrics() *QueueMetrics {
	name := []string{"name"}
	buckets := prometheus.ExponentialBuckets(10e-9, 10, 10)
	return &QueueMetrics{
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "workqueue_retries_total",
			Help: "Total number of retries handled by workqueue",
		}, name),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "workqueue_queue_duration_seconds",
			Help:    "How long in seconds an item stays in workqueue before being requested.",
			Buckets: buckets,
		}, name),
		worked: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "workqueue_work_duration_seconds",
			Help:    "How long in seconds processing an item from workqueue takes.",
			Buckets: buckets,
		}, name),
		depth: prometheus.NewDesc("workqueue_depth", "Current depth of workqueue", name, nil),
		adds:  prometheus.NewDesc("workqueue_adds_total", "Total number of adds handled by workqueue", name, nil),
		unfinished: prometheus.NewDesc("workqueue_unfinished_work_seconds",
			"How many seconds of work has done that is in progress and hasn't been observed by work_duration.", name,
			nil),
		longest: prometheus.NewDesc("workqueue_longest_running_processor_seconds",
			"How many seconds has the longest running processor for workqueue been running.", name, nil),
		running: map[runningLoop]struct{}{},
		ended:   map[string]int64{},
	}
}

// Collectors are the metrics of all loops.
func (q *QueueMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{q.retries, q.waited, q.worked, q}
}

// Describe implements prometheus.Collector.
func (q *QueueMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- q.depth
	ch <- q.adds
	ch <- q.unfinished
	ch <- q.longest
}

// Collect asks the running loops. Loops with the same name count as one.
func (q *QueueMetrics) Collect(ch chan<- prometheus.Metric) {
	type sum struct {
		keyed.Load
		adds int64
	}
	sums := map[string]sum{}
	now := time.Now()
	q.mu.Lock()
	for name, begun := range q.ended {
		sums[name] = sum{adds: begun}
	}
	for l := range q.running {
		name, load, begun := l.load(now)
		s := sums[name]
		s.Due = s.Due + load.Due
		s.Unfinished = s.Unfinished + load.Unfinished
		s.Longest = max(s.Longest, load.Longest)
		s.adds = s.adds + begun + int64(load.Due) // a pass begins for each
		sums[name] = s
	}
	q.mu.Unlock()
	for name, s := range sums {
		ch <- prometheus.MustNewConstMetric(q.depth, prometheus.GaugeValue, float64(s.Due), name)
		ch <- prometheus.MustNewConstMetric(q.adds, prometheus.CounterValue, float64(s.adds), name)
		ch <- prometheus.MustNewConstMetric(q.unfinished, prometheus.GaugeValue, s.Unfinished.Seconds(), name)
		ch <- prometheus.MustNewConstMetric(q.longest, prometheus.GaugeValue, s.Longest.Seconds(), name)
	}
}

// track includes l in the metrics until the returned function is called.
func (q *QueueMetrics) track(l runningLoop) (end func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[l] = struct{}{}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.running, l)
		name, _, begun := l.load(time.Now())
		q.ended[name] = q.ended[name] + begun
	}
}
