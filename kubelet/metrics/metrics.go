// SPDX-License-Identifier: Apache-2.0

// Package metrics has the metrics of a kubelet's own work, with the names and labels of Kubernetes' kubelet. The pod
// workers and the probes update them; the kubelet's server serves them at /metrics and /metrics/probes. Resource usage
// of containers is in package stats.
package metrics

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
)

// Metrics has the metrics. Its methods may be called at any time, and on nil Metrics, which does nothing.
type Metrics struct {
	kubelet, probes *prometheus.Registry

	terminated                 *prometheus.CounterVec // by container_type, exit_code, reason
	probed                     *prometheus.CounterVec
	requested, mounted, failed prometheus.Counter // image volumes

	operations     operations
	reads          reads
	steps          *prometheus.HistogramVec
	starts, level  prometheus.Histogram
	users, noUsers prometheus.Counter // pods with user namespaces
	mounts         *prometheus.HistogramVec
	resizes        resizes
	evictions      *prometheus.CounterVec   // by eviction_signal
	cgroups        *prometheus.HistogramVec // by operation_type
}

// reads are the readings of pods from the runtime.
type reads struct {
	took      prometheus.Histogram
	intervals prometheus.Histogram
	last      atomic.Int64 // in nanoseconds
}

func (r *reads) observe(took time.Duration) {
	r.took.Observe(took.Seconds())
	now := time.Now().UnixNano()
	if last := r.last.Swap(now); last != 0 {
		r.intervals.Observe(max(time.Duration(now-last), 0).Seconds())
	}
}

// New returns metrics at zero.
func New() *Metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}
	}
	metrics := &Metrics{
		kubelet: prometheus.NewRegistry(),
		probes:  prometheus.NewRegistry(),
		terminated: prometheus.NewCounterVec(
			counter("terminated_containers_total", "[ALPHA] Cumulative number of container terminations."),
			[]string{"container_type", "exit_code", "reason"}),
		probed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "prober",
			Name:      "probe_total",
			Help:      "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		requested: prometheus.NewCounter(
			counter("image_volume_requested_total", "[BETA] Number of requested image volumes.")),
		mounted: prometheus.NewCounter(
			counter("image_volume_mounted_succeed_total", "[BETA] Number of successful image volume mounts.")),
		failed: prometheus.NewCounter(
			counter("image_volume_mounted_errors_total", "[BETA] Number of failed image volume mounts.")),
	}
	metrics.kubelet.MustRegister(metrics.terminated, metrics.requested, metrics.mounted, metrics.failed,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics.probes.MustRegister(metrics.probed)
	metrics.addDurations()
	metrics.addResizes()
	return metrics
}

// startBuckets are Kubernetes' bounds of the time in which pods start, in seconds.
var startBuckets = []float64{
	0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
}

// addDurations adds the metrics of how long the kubelet's work takes, which dashboards of kubelets show.
func (m *Metrics) addDurations() {
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: buckets}
	}
	calls := prometheus.ExponentialBuckets(.005, 2.5, 14)
	kind := []string{"operation_type"}
	m.operations.count = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_runtime_operations_total",
		Help: "[ALPHA] Cumulative number of runtime operations by operation type.",
	}, kind)
	m.operations.errors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_runtime_operations_errors_total",
		Help: "[ALPHA] Cumulative number of runtime operation errors by operation type.",
	}, kind)
	m.operations.took = prometheus.NewHistogramVec(histogram("runtime_operations_duration_seconds",
		"[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.", calls), kind)
	m.reads.took = prometheus.NewHistogram(histogram("pleg_relist_duration_seconds",
		"[ALPHA] Duration in seconds for reading a pod from the runtime.", prometheus.DefBuckets))
	m.reads.intervals = prometheus.NewHistogram(histogram("pleg_relist_interval_seconds",
		"[ALPHA] Interval in seconds between two reads of pods from the runtime.", prometheus.DefBuckets))
	m.cgroups = prometheus.NewHistogramVec(histogram("cgroup_manager_duration_seconds",
		"[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
		prometheus.DefBuckets), kind)
	m.evictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_evictions",
		Help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
	}, []string{"eviction_signal"})
	m.kubelet.MustRegister(m.reads.intervals, m.cgroups, m.evictions)
	m.steps = prometheus.NewHistogramVec(histogram("pod_worker_duration_seconds",
		"[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
		prometheus.DefBuckets), kind)
	m.starts = prometheus.NewHistogram(histogram("pod_start_duration_seconds",
		"[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
		startBuckets))
	m.level = prometheus.NewHistogram(histogram("pod_start_sli_duration_seconds",
		"[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured "+
			"from pod creation timestamp to when all its containers are reported as started and observed via watch",
		startBuckets))
	m.users = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_started_user_namespaced_pods_total",
		Help: "[ALPHA] Cumulative number of pods with user namespaces started",
	})
	m.noUsers = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubelet_started_user_namespaced_pods_errors_total",
		Help: "[ALPHA] Cumulative number of errors when starting pods with user namespaces",
	})
	m.kubelet.MustRegister(m.level, m.users, m.noUsers)
	m.mounts = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "storage_operation_duration_seconds",
		Help:    "[ALPHA] Storage operation duration",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"migrated", "operation_name", "status", "volume_plugin"})
	m.kubelet.MustRegister(m.operations.count, m.operations.errors, m.operations.took, m.reads.took, m.steps, m.starts,
		m.mounts)
}

// PodRead counts a pod's state that was read from the runtime.
func (m *Metrics) PodRead(took time.Duration) {
	if m != nil {
		m.reads.observe(took)
	}
}

// PodEvicted counts a pod that was evicted because of a signal.
func (m *Metrics) PodEvicted(signal string) {
	if m != nil {
		m.evictions.WithLabelValues(signal).Inc()
	}
}

// Cgroup counts an operation on a pod's cgroup: create, update or destroy.
func (m *Metrics) Cgroup(operation string, took time.Duration) {
	if m != nil {
		m.cgroups.WithLabelValues(operation).Observe(took.Seconds())
	}
}

// PodStep counts a round of a pod's worker; create: the first one.
func (m *Metrics) PodStep(create bool, took time.Duration) {
	if m == nil {
		return
	}
	kind := "sync"
	if create {
		kind = "create"
	}
	m.steps.WithLabelValues(kind).Observe(took.Seconds())
}

// PodStarted observes the time from when the kubelet saw a pod first until it runs.
func (m *Metrics) PodStarted(took time.Duration) {
	if m != nil {
		m.starts.Observe(took.Seconds())
	}
}

// PodStartLevel observes how long a pod took to start, as Kubernetes' service level for pod starts measures it.
func (m *Metrics) PodStartLevel(took time.Duration) {
	if m != nil {
		m.level.Observe(max(took, 0).Seconds())
	}
}

// UserNamespacedPod counts an attempt to make a sandbox with a user namespace.
func (m *Metrics) UserNamespacedPod(err error) {
	if m == nil {
		return
	}
	m.users.Inc()
	if err != nil {
		m.noUsers.Inc()
	}
}

// VolumeMounted counts a volume that was set up, or could not be.
func (m *Metrics) VolumeMounted(plugin string, took time.Duration, err error) {
	if m == nil {
		return
	}
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.mounts.WithLabelValues("false", "volume_mount", status, plugin).Observe(took.Seconds())
}

// Handler serves /metrics, with further collectors.
func (m *Metrics) Handler(more ...prometheus.Collector) http.Handler {
	others := prometheus.NewRegistry()
	others.MustRegister(more...)
	return promhttp.HandlerFor(prometheus.Gatherers{m.kubelet, others}, promhttp.HandlerOpts{})
}

// Probes serves /metrics/probes.
func (m *Metrics) Probes() http.Handler { return promhttp.HandlerFor(m.probes, promhttp.HandlerOpts{}) }

// ContainerTerminated counts the end of a container.
func (m *Metrics) ContainerTerminated(k podinfo.Kind, code int32, reason string) {
	if m == nil {
		return
	}
	kind := "container"
	switch k {
	case podinfo.Init, podinfo.SideCar:
		kind = "init_container"
	case podinfo.Ephemeral:
		kind = "ephemeral_container"
	case podinfo.Main:
	}
	m.terminated.WithLabelValues(kind, strconv.Itoa(int(code)), reason).Inc()
}

// ImageVolumes counts the n image volumes of a container that was to be created, and whether it was.
func (m *Metrics) ImageVolumes(n int, err error) {
	if m == nil || n == 0 {
		return
	}
	m.requested.Add(float64(n))
	if err != nil {
		m.failed.Add(float64(n))
		return
	}
	m.mounted.Add(float64(n))
}

// DeletePod drops the series of the pod with this UID.
func (m *Metrics) DeletePod(uid string) {
	if m != nil {
		m.probed.DeletePartialMatch(prometheus.Labels{"pod_uid": uid})
	}
}

// ProbeDone counts an attempt of a probe.
func (m *Metrics) ProbeDone(t probe.Target, o probe.Outcome) {
	result := "failed"
	switch {
	case o.Err != nil:
		result = "unknown"
	case o.OK:
		result = "successful"
	}
	m.probed.WithLabelValues(string(t.Kind), result, t.Container.Name, t.Pod.Name, t.Pod.Namespace, string(t.Pod.UID)).
		Inc()
}
