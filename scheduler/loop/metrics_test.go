// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
)

// counted are the values of all series with the fewest labels that distinguish them; of histograms, how often
// something was observed.
func counted(t *testing.T, metrics *loop.Metrics) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "profile" {
					labels = append(labels, l.GetValue())
				}
			}
			out[strings.TrimPrefix(f.GetName(), "scheduler_")+fmt.Sprint(labels)] += m.GetCounter().GetValue() +
				m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// TestMetrics: kube-scheduler's series show what became of each pod and where it waits.
// The big pod is not tried again when the room is free that the failed binding took: it is too small.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gated := schedtest.Pod("gated")
		gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/later"}}
		metrics := loop.NewMetrics()
		c := startWith(t, func(cfg *loop.Config) { cfg.Metrics = metrics }, schedtest.Node("node-1"), schedtest.Pod("fits"),
			schedtest.Pod("big", schedtest.Requests("1", "64Gi")), gated)
		time.Sleep(time.Second)
		c.refuse.Store(true)
		if err := c.Tracker().Add(schedtest.Pod("unlucky")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		after := counted(t, metrics)
		for series, want := range map[string]float64{
			"schedule_attempts_total[scheduled]":                                   2,
			"schedule_attempts_total[unschedulable]":                               1,
			"schedule_attempts_total[error]":                                       1,
			"scheduling_attempt_duration_seconds[scheduled]":                       2,
			"scheduling_algorithm_duration_seconds[]":                              4,
			"pod_scheduling_attempts[]":                                            2,
			"pod_scheduling_sli_duration_seconds[1]":                               1,
			"pod_scheduling_sli_duration_seconds[2]":                               1,
			"pending_pods[unschedulable]":                                          1,
			"pending_pods[gated]":                                                  1,
			"pending_pods[active]":                                                 0,
			"pending_pods[backoff]":                                                0,
			"unschedulable_pods[NodeResourcesFit]":                                 1,
			"unschedulable_pods[SchedulingGates]":                                  1,
			"scheduler_cache_size[nodes]":                                          1,
			"scheduler_cache_size[pods]":                                           2,
			"scheduler_cache_size[assumed_pods]":                                   0,
			"queue_incoming_pods_total[PodAdd active]":                             3,
			"queue_incoming_pods_total[PodAdd gated]":                              1,
			"queue_incoming_pods_total[ScheduleAttemptFailure unschedulable]":      1,
			"queue_incoming_pods_total[ScheduleAttemptFailure backoff]":            1,
			"framework_extension_point_duration_seconds[Bind Success]":             2,
			"framework_extension_point_duration_seconds[Bind Error]":               1,
			"framework_extension_point_duration_seconds[Filter Unschedulable]":     1,
			"framework_extension_point_duration_seconds[PostFilter Unschedulable]": 1,
			"preemption_attempts_total[]":                                          1,
			"preemption_victims[]":                                                 0,
		} {
			if got := after[series]; got != want {
				t.Errorf("%s: %v, want %v", series, got, want)
			}
		}
	})
}

// TestPluginDurations: the plugins of one in ten attempts are measured, at each extension point; and how long a pod
// waits on Permit.
func TestPluginDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := loop.NewMetrics()
		h := &holds{}
		cluster := startWith(t, func(cfg *loop.Config) {
			cfg.Metrics = metrics
			with(framework.Registry{"Holds": func(_ any, handle *framework.Handle) (*framework.Plugin, error) {
				h.Handle = handle
				return h.plugin(), nil
			}})(cfg)
		}, schedtest.Node("a"))
		cluster.bring(schedtest.Pod("fits", schedtest.Labelled("hold", "yes")))
		for _, w := range h.Waiting.All() {
			w.Allow("Holds")
		}
		synctest.Wait()
		for i := range 9 {
			cluster.bring(schedtest.Pod(fmt.Sprint("unsampled-", i)))
		}
		cluster.bring(schedtest.Pod("big", schedtest.Requests("64", "")))
		after := counted(t, metrics)
		for series, want := range map[string]float64{
			"PreFilter NodePorts Skip":                             2,
			"PreFilter NodeResourcesFit Success":                   2,
			"Filter NodeResourcesFit Success":                      1,
			"Filter NodeResourcesFit UnschedulableAndUnresolvable": 1,
			"PreScore NodeResourcesFit Success":                    1,
			"PreScore NodeAffinity Skip":                           1,
			"Score NodeResourcesFit Success":                       1,
			"Reserve VolumeBinding Success":                        1,
			"Permit Holds Success":                                 1,
			"PreBind VolumeBinding Success":                        1,
			"Bind DefaultBinder Success":                           1,
			"PostFilter DefaultPreemption Unschedulable":           1,
		} {
			if got := after["plugin_execution_duration_seconds["+series+"]"]; got != want {
				t.Errorf("%s: %v, want %v", series, got, want)
			}
		}
		if got := after["permit_wait_duration_seconds[Success]"]; got != 1 {
			t.Errorf("%v waits on Permit, want 1", got)
		}
	})
}
