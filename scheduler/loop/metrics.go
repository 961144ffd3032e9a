// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// The results of attempts, by Kubernetes' names.
const (
	scheduled     = "scheduled"
	unschedulable = "unschedulable"
	failed        = "error"
)

// Metrics are the metrics of the schedulers that are made with them, with kube-scheduler's names.
type Metrics struct {
	attempts, incoming                                     *prometheus.CounterVec
	attemptDuration, extensionPointDuration, schedulingSLI *prometheus.HistogramVec
	algorithmDuration, attemptsPerPod, preemptionVictims   prometheus.Histogram
	preemptions, flushed                                   prometheus.Counter
	pluginDuration, permitWait                             *prometheus.HistogramVec
	pendingDesc, cacheDesc, unschedulableDesc              *prometheus.Desc

	mu      sync.Mutex
	running map[*Scheduler]struct{}
}

// NewMetrics returns a set for Config.Metrics: of one scheduler after another, in one cluster.
func NewMetrics() *Metrics {
	durations := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be " +
				"scheduled, while 'error' means an internal scheduler problem.",
		}, []string{"result", "profile"}),
		incoming: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_queue_incoming_pods_total",
			Help: "Number of pods added to scheduling queues by event and queue type.",
		}, []string{"event", "queue"}),
		attemptDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_scheduling_attempt_duration_seconds",
			Help:    "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
			Buckets: durations,
		}, []string{"result", "profile"}),
		extensionPointDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_framework_extension_point_duration_seconds",
			Help:    "Latency for running all plugins of a specific extension point.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 12),
		}, []string{"extension_point", "status", "profile"}),
		pluginDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_plugin_execution_duration_seconds",
			Help:    "Duration for running a plugin at a specific extension point.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 1.5, 20),
		}, []string{"plugin", "extension_point", "status"}),
		permitWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_permit_wait_duration_seconds",
			Help:    "Duration of waiting on permit.",
			Buckets: durations,
		}, []string{"result"}),
		schedulingSLI: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "scheduler_pod_scheduling_sli_duration_seconds",
			Help: "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and " +
				"might involve multiple scheduling attempts.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 20),
		}, []string{"attempts"}),
		algorithmDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_scheduling_algorithm_duration_seconds",
			Help:    "Scheduling algorithm latency in seconds",
			Buckets: durations,
		}),
		attemptsPerPod: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_pod_scheduling_attempts",
			Help:    "Number of attempts to successfully schedule a pod.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 5),
		}),
		preemptionVictims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "scheduler_preemption_victims",
			Help:    "Number of selected preemption victims",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total",
			Help: "Total preemption attempts in the cluster till now",
		}),
		flushed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_pod_scheduled_after_flush_total",
			Help: "Number of pods that were successfully scheduled after being flushed from unschedulableEntities " +
				"due to timeout. This metric helps detect potential queueing hint misconfigurations or event " +
				"handling issues.",
		}),
		pendingDesc: prometheus.NewDesc("scheduler_pending_pods", "Number of pending pods, by the queue type. "+
			"'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' "+
			"means number of pods in unschedulableEntities "+
			"that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that "+
			"the scheduler never attempted to schedule because they are gated.",
			[]string{"queue"}, nil),
		cacheDesc: prometheus.NewDesc("scheduler_scheduler_cache_size",
			"Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", []string{"type"}, nil),
		unschedulableDesc: prometheus.NewDesc("scheduler_unschedulable_pods",
			"The number of unschedulable pods broken down by plugin name. "+
				"A pod will increment the gauge for all plugins that caused it to not schedule and so this metric "+
				"have "+
				"meaning only when broken down by plugin.",
			[]string{"plugin", "profile"}, nil),
		running: map[*Scheduler]struct{}{},
	}
}

// Collectors returns them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.attempts, m.incoming, m.attemptDuration, m.extensionPointDuration, m.pluginDuration, m.permitWait,
		m.schedulingSLI, m.algorithmDuration, m.attemptsPerPod, m.preemptionVictims, m.preemptions,
		m.flushed, m,
	}
}

// add includes the pods and nodes of s in the gauges until remove is called.
func (m *Metrics) add(s *Scheduler) (remove func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[s] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, s)
	}
}

// Describe describes the gauges that Collect computes.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.pendingDesc
	ch <- m.cacheDesc
	ch <- m.unschedulableDesc
}

// Collect sums up the gauges of all running schedulers.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	pending := map[queue.Place]int{
		queue.Active:        0,
		queue.Backoff:       0,
		queue.Unschedulable: 0,
		queue.Gated:         0,
	}
	unschedulablePods := map[[2]string]int{}
	cached := map[string]int{"nodes": 0, "pods": 0, "assumed_pods": 0}
	m.mu.Lock()
	for s := range m.running {
		w, refusedBy := s.queue.Counts()
		for place, n := range w {
			pending[place] += n
		}
		for of, n := range refusedBy {
			unschedulablePods[of] += n
		}
		nodes, pods, assumed := s.core.Cache.Size()
		cached["nodes"] += nodes
		cached["pods"] += pods
		cached["assumed_pods"] += assumed
	}
	m.mu.Unlock()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for place, n := range pending {
		gauge(m.pendingDesc, n, string(place))
	}
	for what, n := range cached {
		gauge(m.cacheDesc, n, what)
	}
	for of, n := range unschedulablePods {
		gauge(m.unschedulableDesc, n, of[0], of[1])
	}
}

// measureAttempt records an attempt with its result.
func (p *profile) measureAttempt(result string, begin time.Time) {
	m := p.metrics
	m.attempts.WithLabelValues(result, p.SchedulerName).Inc()
	m.attemptDuration.WithLabelValues(result, p.SchedulerName).Observe(time.Since(begin).Seconds())
}

// measureScheduled records a pod that was bound.
func (m *Metrics) measureScheduled(it *queue.Item) {
	m.attemptsPerPod.Observe(float64(it.Attempts))
	if it.Flushed {
		m.flushed.Inc()
	}
	m.schedulingSLI.WithLabelValues(strconv.Itoa(min(it.Attempts, 15))).Observe(time.Since(it.First).Seconds())
}

// measureDecision records the durations of filtering and scoring.
func (p *profile) measureDecision(attempt *framework.Attempt, begin time.Time) {
	metrics := p.metrics
	metrics.algorithmDuration.Observe(time.Since(begin).Seconds())
	status := "Success"
	switch {
	case attempt.Failed != nil:
		status = "Error"
	case attempt.Chosen == nil:
		status = "Unschedulable"
	}
	took := metrics.extensionPointDuration
	took.WithLabelValues("Filter", status, p.SchedulerName).Observe(attempt.Took.Filter.Seconds())
	if attempt.Took.Score > 0 {
		took.WithLabelValues("Score", "Success", p.SchedulerName).Observe(attempt.Took.Score.Seconds())
	}
}

// measurePermitWait records how long a pod waited on Permit plugins.
func (p *profile) measurePermitWait(st *framework.Status, err error, begin time.Time) {
	result := framework.StatusName(st)
	if st == nil && err != nil {
		result = "Error"
	}
	p.metrics.permitWait.WithLabelValues(result).Observe(time.Since(begin).Seconds())
}

// measure records how long the plugins of an extension point took.
func (p *profile) measure(point string, run func() error) error {
	begin := time.Now()
	err := run()
	status := "Success"
	switch {
	case errors.Is(err, errNoNomination), framework.Rejection(err) != nil:
		status = "Unschedulable"
	case err != nil:
		status = "Error"
	}
	took := time.Since(begin).Seconds()
	p.metrics.extensionPointDuration.WithLabelValues(point, status, p.SchedulerName).Observe(took)
	return err
}
