// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// TestScheduledAfterFlush: a pod counts that no event, but its long wait made ready, and then found a node.
func TestScheduledAfterFlush(t *testing.T) {
	metrics := NewMetrics()
	count := func() float64 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(metrics.flushed)
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("gather: %v, %v", families, err)
		}
		return families[0].GetMetric()[0].GetCounter().GetValue()
	}
	metrics.measureScheduled(&queue.Item{})
	metrics.measureScheduled(&queue.Item{QueuedPod: framework.QueuedPod{Flushed: true}})
	if got := count(); got != 1 {
		t.Errorf("got %v, want 1", got)
	}
}
