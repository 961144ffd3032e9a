// SPDX-License-Identifier: Apache-2.0

package image

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// counters are the metrics of requests for images, with the names and labels of Kubernetes' kubelet.
type counters struct{ ensured, checked *prometheus.CounterVec }

func newCounters() counters {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
	}
	return counters{
		ensured: counter("image_manager_ensure_image_requests_total",
			"[ALPHA] Number of ensure-image requests processed by the kubelet.",
			"present_locally", "pull_policy", "pull_required"),
		checked: counter("imagemanager_image_mustpull_checks_total",
			"[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access "+
				"an image", "result"),
	}
}

// The results of looking whether a pod's credentials must be verified.
const (
	allowedByPolicy = "credentialPolicyAllowed"
	foundInRecord   = "credentialRecordFound"
	mustBeVerified  = "mustAuthenticate"
)

// need is what a request for an image found out.
type need struct{ present, pull *bool }

func (c counters) count(policy corev1.PullPolicy, found need) {
	text := func(v *bool) string {
		if v == nil {
			return "unknown"
		}
		return strconv.FormatBool(*v)
	}
	c.ensured.WithLabelValues(text(found.present), strings.ToLower(string(policy)), text(found.pull)).Inc()
}

var (
	descIntents = prometheus.NewDesc("kubelet_imagemanager_ondisk_pullintents",
		"[ALPHA] Number of ImagePullIntents stored on disk.", nil, nil)
	descRecords = prometheus.NewDesc("kubelet_imagemanager_ondisk_pulledrecords",
		"[ALPHA] Number of ImagePulledRecords stored on disk.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	m.ensured.Describe(ch)
	m.checked.Describe(ch)
	ch <- descIntents
	ch <- descRecords
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	m.ensured.Collect(ch)
	m.checked.Collect(ch)
	for desc, dir := range map[*prometheus.Desc]string{
		descIntents: m.records.pullingDir,
		descRecords: m.records.pulledDir,
	} {
		if files, err := recordFiles(dir); err == nil {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(len(files)))
		}
	}
}
