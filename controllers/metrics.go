// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/client"
	"keelson/controllers/attachdetach"
	"keelson/controllers/cronjob"
	"keelson/controllers/endpointslice"
	"keelson/controllers/endpointslicemirroring"
	"keelson/controllers/framework"
	"keelson/controllers/job"
	"keelson/controllers/nodelifecycle"
	"keelson/controllers/podautoscaler"
	"keelson/controllers/podgc"
	"keelson/controllers/statefulset"
	"keelson/controllers/tainteviction"
	"keelson/controllers/ttlafterfinished"
)

// Metrics are those of a cluster's controllers and their queues, under Kubernetes' names. They outlive a Manager: what
// leads again goes on counting.
type Metrics struct {
	claims           *client.Claims
	queues           *framework.QueueMetrics
	attachDetach     *attachdetach.Metrics
	cronJob          *cronjob.Metrics
	job              *job.Metrics
	mirroring        *endpointslicemirroring.Metrics
	nodeLifecycle    *nodelifecycle.Metrics
	podAutoscaler    *podautoscaler.Metrics
	podGC            *podgc.Metrics
	statefulSet      *statefulset.Metrics
	taintEviction    *tainteviction.Metrics
	ttlAfterFinished *ttlafterfinished.Metrics
}

// NewMetrics returns metrics for the controllers of one cluster. claims is shared with the cluster's scheduler, and not
// among the Collectors.
func NewMetrics(claims *client.Claims) *Metrics {
	return &Metrics{
		claims:           claims,
		queues:           framework.NewQueueMetrics(),
		attachDetach:     attachdetach.NewMetrics(),
		cronJob:          cronjob.NewMetrics(),
		job:              job.NewMetrics(),
		mirroring:        endpointslicemirroring.NewMetrics(),
		nodeLifecycle:    nodelifecycle.NewMetrics(),
		podAutoscaler:    podautoscaler.NewMetrics(),
		podGC:            podgc.NewMetrics(),
		statefulSet:      statefulset.NewMetrics(),
		taintEviction:    tainteviction.NewMetrics(),
		ttlAfterFinished: ttlafterfinished.NewMetrics(),
	}
}

// Collectors are all of them. Those of k8s.io/endpointslice are one set for the process: the library has them in
// variables.
func (m *Metrics) Collectors() []prometheus.Collector {
	return slices.Concat(m.queues.Collectors(), m.job.Collectors(), m.cronJob.Collectors(),
		m.ttlAfterFinished.Collectors(), endpointslice.Collectors(), m.mirroring.Collectors(),
		m.nodeLifecycle.Collectors(), m.podAutoscaler.Collectors(), m.podGC.Collectors(), m.statefulSet.Collectors(),
		m.taintEviction.Collectors(), m.attachDetach.Collectors())
}
