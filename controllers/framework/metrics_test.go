// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestQueueMetrics: the workqueue metrics report what a loop has, does and did, by its name.
func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		finish := make(chan error)
		const name = "metrics-test"
		metrics := NewQueueMetrics()
		l := NewLoop(Queue{Name: name, Metrics: metrics}, 1, slog.New(slog.DiscardHandler), func(context.Context, Key) error {
			begun <- struct{}{}
			return <-finish
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx, func() {}) }() // ends with ctx
		l.Add(Key{Name: "a"})
		<-begun
		l.Add(Key{Name: "b"})
		time.Sleep(time.Second)
		got := metricsOf(t, metrics, name)
		for metric, want := range map[string]float64{
			"workqueue_adds_total":             2,
			"workqueue_depth":                  1,
			"workqueue_queue_duration_seconds": 1,
		} {
			if got[metric] != want {
				t.Errorf("while it works: %s is %v, want %v", metric, got[metric], want)
			}
		}
		if a, b := got["workqueue_unfinished_work_seconds"],
			got["workqueue_longest_running_processor_seconds"]; a != 1 || b != 1 {
			t.Errorf("while it works: %v s of work are unfinished, %v s of the longest, want 1 and 1", a, b)
		}
		finish <- errors.New("again")
		for range 2 { // b, and a again after a moment, in some order
			<-begun
			finish <- nil
		}
		want := map[string]float64{
			"workqueue_adds_total":                        3,
			"workqueue_depth":                             0,
			"workqueue_retries_total":                     1,
			"workqueue_work_duration_seconds":             3,
			"workqueue_unfinished_work_seconds":           0,
			"workqueue_longest_running_processor_seconds": 0,
		}
		synctest.Wait()
		got = metricsOf(t, metrics, name)
		for metric := range want {
			if got[metric] != want[metric] {
				t.Errorf("in the end: %s is %v, want %v", metric, got[metric], want[metric])
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// metricsOf are the loop's metrics: values, and how often something was measured.
func metricsOf(t *testing.T, of *QueueMetrics, name string) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(of.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == name {
				out[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(
					m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}
