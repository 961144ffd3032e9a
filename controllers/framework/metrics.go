// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// queueMetrics are Kubernetes' workqueue_* metrics of all loops in the process.
type queueMetrics struct {
	depth          *prometheus.GaugeVec
	adds, retries  *prometheus.CounterVec
	waited, worked *prometheus.HistogramVec
	unfinishedDesc *prometheus.Desc
	longestDesc    *prometheus.Desc
	mu             sync.Mutex
	running        map[runningLoop]struct{}
}

// runningLoop is a running loop: the time so far of the keys being processed, total and longest.
type runningLoop interface {
	unfinished(now time.Time) (name string, all, longest time.Duration)
}

// queues is one for the process, as in Kubernetes.
var queues = sync.OnceValue(func() *queueMetrics {
	name := []string{"name"}
	buckets := prometheus.ExponentialBuckets(10e-9, 10, 10)
	return &queueMetrics{
		depth: prometheus.NewGaugeVec(
			prometheus.GaugeOpts{Name: "workqueue_depth", Help: "Current depth of workqueue"}, name),
		adds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "workqueue_adds_total",
			Help: "Total number of adds handled by workqueue",
		}, name),
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
		unfinishedDesc: prometheus.NewDesc("workqueue_unfinished_work_seconds",
			"How many seconds of work has done that is in progress and hasn't been observed by work_duration.", name,
			nil),
		longestDesc: prometheus.NewDesc("workqueue_longest_running_processor_seconds",
			"How many seconds has the longest running processor for workqueue been running.", name, nil),
		running: map[runningLoop]struct{}{},
	}
})

// Collectors are the metrics of all loops.
func Collectors() []prometheus.Collector {
	q := queues()
	return []prometheus.Collector{q.depth, q.adds, q.retries, q.waited, q.worked, q}
}

// Describe implements prometheus.Collector.
func (q *queueMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- q.unfinishedDesc
	ch <- q.longestDesc
}

// Collect asks the running loops. Loops with the same name, of several clusters in one process, count as one.
func (q *queueMetrics) Collect(ch chan<- prometheus.Metric) {
	type sum struct{ all, longest time.Duration }
	sums := map[string]sum{}
	now := time.Now()
	q.mu.Lock()
	for l := range q.running {
		name, all, longest := l.unfinished(now)
		s := sums[name]
		sums[name] = sum{s.all + all, max(s.longest, longest)}
	}
	q.mu.Unlock()
	for name, s := range sums {
		ch <- prometheus.MustNewConstMetric(q.unfinishedDesc, prometheus.GaugeValue, s.all.Seconds(), name)
		ch <- prometheus.MustNewConstMetric(q.longestDesc, prometheus.GaugeValue, s.longest.Seconds(), name)
	}
}

// track includes l in the metrics until the returned function is called.
func (q *queueMetrics) track(l runningLoop) (end func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running[l] = struct{}{}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.running, l)
	}
}

// The workqueue metrics provider.

func (q *queueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.depth.WithLabelValues(name)
}

func (q *queueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

func (q *queueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.waited.WithLabelValues(name)
}

func (q *queueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.worked.WithLabelValues(name)
}

func (q *queueMetrics) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return noopGauge{}
}

func (q *queueMetrics) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return noopGauge{}
}

func (q *queueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.retries.WithLabelValues(name)
}

// noopGauge is an unused gauge: Collect computes its value instead.
type noopGauge struct{}

func (noopGauge) Set(float64) {}

// noTickerClock has no tickers: otherwise a queue with metrics would wake up twice a second to set the gauges that
// Collect computes.
type noTickerClock struct{ clock.RealClock }

func (noTickerClock) NewTicker(time.Duration) clock.Ticker { return noopTicker{} }

// noopTicker is a ticker that never ticks.
type noopTicker struct{}

func (noopTicker) C() <-chan time.Time { return nil }

func (noopTicker) Stop() {}
