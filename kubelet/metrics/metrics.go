// SPDX-License-Identifier: Apache-2.0

// Package metrics has the metrics of a kubelet's own work, with the names and labels of Kubernetes' kubelet. The pod
// workers and the probes update them; the kubelet's server serves them at /metrics and /metrics/probes. Resource usage
// of containers is in package stats.
package metrics

import (
	"net/http"
	"strconv"

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
	return metrics
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

// DeletePod drops what was counted of a pod by its uid.
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
