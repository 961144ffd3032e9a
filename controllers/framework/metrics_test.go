// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestQueueMetrics: what a loop has, does and did is told by its name.
func TestQueueMetrics(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan error)
	l := NewLoop("metrics-test", 1, slog.New(slog.DiscardHandler), func(context.Context, Key) error {
		begun <- struct{}{}
		return <-finish
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx, func() {}) }() // ends with ctx
	l.Add(Key{Name: "a"})
	<-begun
	l.Add(Key{Name: "b"})
	got := told(t)
	for name, want := range map[string]float64{"workqueue_adds_total": 2, "workqueue_depth": 1, "workqueue_queue_duration_seconds": 1} {
		if got[name] != want {
			t.Errorf("while it works: %s is %v, want %v", name, got[name], want)
		}
	}
	if a, b := got["workqueue_unfinished_work_seconds"], got["workqueue_longest_running_processor_seconds"]; a <= 0 || a != b {
		t.Errorf("while it works: %v s of work are unfinished, %v s of the longest", a, b)
	}
	finish <- errors.New("again")
	for range 2 { // b, and a again after a moment, in some order
		<-begun
		finish <- nil
	}
	want := map[string]float64{
		"workqueue_adds_total": 3, "workqueue_depth": 0, "workqueue_retries_total": 1, "workqueue_work_duration_seconds": 3,
		"workqueue_unfinished_work_seconds": 0, "workqueue_longest_running_processor_seconds": 0,
	}
	deadline := time.Now().Add(time.Minute)
	for name := range want {
		for told(t)[name] != want[name] {
			if time.Now().After(deadline) {
				t.Fatalf("in the end: %s is %v, want %v", name, told(t)[name], want[name])
			}
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// told are the loop's metrics: values, and how often something was measured.
func told(t *testing.T) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "metrics-test" {
				out[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}
