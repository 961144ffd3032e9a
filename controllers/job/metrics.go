// SPDX-License-Identifier: Apache-2.0

package job

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"keelson/api/batch"
	"keelson/api/core/pod"
)

// Metrics are Kubernetes' metrics of the controller.
type Metrics struct {
	duration        *prometheus.HistogramVec
	syncs           *prometheus.CounterVec
	finishedJobs    *prometheus.CounterVec
	external        *prometheus.CounterVec
	finishedPods    *prometheus.CounterVec
	policyActions   *prometheus.CounterVec
	finalizers      *prometheus.CounterVec
	finishedIndexes *prometheus.CounterVec
	pods            *prometheus.CounterVec
}

// NewMetrics returns metrics of a cluster's controller.
func NewMetrics() *Metrics {
	const system = "job_controller"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: system, Name: name, Help: help}, labels)
	}
	return &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: system,
			Name:      "job_sync_duration_seconds",
			Help:      "The time it took to sync a job",
			Buckets:   prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{"completion_mode", "result", "action"}),
		syncs: counter("job_syncs_total", "The number of job syncs", "completion_mode", "result", "action"),
		finishedJobs: counter("jobs_finished_total", "The number of finished jobs", "completion_mode", "result",
			"reason"),
		external: counter("jobs_by_external_controller_total",
			"The number of Jobs managed by an external controller", "controller_name"),
		finishedPods: counter("job_pods_finished_total", "The number of finished Pods that are fully tracked",
			"completion_mode", "result"),
		policyActions: counter("pod_failures_handled_by_failure_policy_total",
			"The number of failed Pods handled by failure policy with respect to the failure policy action applied "+
				"based on the matched rule.", "action"),
		finalizers: counter("terminated_pods_tracking_finalizer_total",
			"The number of terminated pods (phase=Failed|Succeeded) that have the finalizer "+
				"batch.kubernetes.io/job-tracking.", "event"),
		finishedIndexes: counter("job_finished_indexes_total", "The number of finished indexes.", "status",
			"backoffLimit"),
		pods: counter("job_pods_creation_total", "The number of Pods created by the Job controller "+
			"labelled with a reason for the Pod creation.", "reason", "status"),
	}
}

// Collectors are all of them.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.duration, m.syncs, m.finishedJobs, m.external, m.finishedPods, m.policyActions, m.finalizers,
		m.finishedIndexes, m.pods,
	}
}

func mode(j *batchv1.Job) string {
	if isIndexed(j) {
		return string(batchv1.IndexedCompletion)
	}
	return string(batchv1.NonIndexedCompletion)
}

// observeSync counts a pass.
func (m *Metrics) observeSync(job *batchv1.Job, p plan, took time.Duration, err error) {
	action := "tracking"
	result := "success"
	switch {
	case p.create > 0:
		action = "pods_created"
	case len(p.remove)+len(p.terminate) > 0:
		action = "pods_deleted"
	case !p.managed && p.end == nil:
		action = "reconciling"
	}
	if err != nil {
		result = "error"
	}
	m.duration.WithLabelValues(mode(job), result, action).Observe(took.Seconds())
	m.syncs.WithLabelValues(mode(job), result, action).Inc()
}

func (m *Metrics) observeCreations(j *batchv1.Job, t podCounts, ok, failed int) {
	reason := "new"
	switch {
	case j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed && t.failed > 0:
		reason = "recreate_failed"
	case t.failed > 0 || t.terminating > 0:
		reason = "recreate_terminating_or_failed"
	}
	if ok > 0 {
		m.pods.WithLabelValues(reason, "succeeded").Add(float64(ok))
	}
	if failed > 0 {
		m.pods.WithLabelValues(reason, "failed").Add(float64(failed))
	}
}

func (m *Metrics) countRules(ruled map[batchv1.PodFailurePolicyAction]int) {
	for action, n := range ruled {
		m.policyActions.WithLabelValues(string(action)).Add(float64(n))
	}
}

// podsFinished compares the status of job with the one before. Elastic indexed jobs may shrink, which is not counted.
func (m *Metrics) podsFinished(job *batchv1.Job, before *batchv1.JobStatus) {
	add := func(c *prometheus.CounterVec, n int32, labels ...string) {
		if n > 0 {
			c.WithLabelValues(labels...).Add(float64(n))
		}
	}
	won := job.Status.Succeeded - before.Succeeded
	if isIndexed(job) {
		limit := "global"
		if hasBackoffLimitPerIndex(job) {
			limit = "perIndex"
		}
		add(m.finishedIndexes, won, "succeeded", limit)
		add(m.finishedIndexes, failedIndexes(job, &job.Status)-failedIndexes(job, before), "failed", limit)
	}
	add(m.finishedPods, won, mode(job), "succeeded")
	add(m.finishedPods, job.Status.Failed-before.Failed, mode(job), "failed")
}

func failedIndexes(j *batchv1.Job, st *batchv1.JobStatus) int32 {
	if st.FailedIndexes == nil {
		return 0
	}
	return batch.ReadIndexes(*st.FailedIndexes, *j.Spec.Completions).Count()
}

func (m *Metrics) jobFinished(j *batchv1.Job, v *endCondition) {
	result := "succeeded"
	if v.failed() {
		result = "failed"
	}
	m.finishedJobs.WithLabelValues(mode(j), result, v.reason).Inc()
}

// terminatedWithFinalizer records that a finished pod got or lost the finalizer. Either may be nil.
func (m *Metrics) terminatedWithFinalizer(old, cur *corev1.Pod) {
	was := old != nil && pod.Terminal(old) && tracked(old)
	is := cur != nil && pod.Terminal(cur) && tracked(cur)
	switch {
	case is && !was:
		m.finalizers.WithLabelValues("add").Inc()
	case was && !is:
		m.finalizers.WithLabelValues("delete").Inc()
	}
}
