// SPDX-License-Identifier: Apache-2.0

// Package stats answers /stats/summary and /metrics/resource from what the runtime measures. The kubelet's server calls it, when
// somebody asks; nothing is measured otherwise.
package stats

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/observed"
)

// Source measures.
type Source struct {
	Runtime  runtimeapi.RuntimeServiceClient
	NodeName string
}

// The wire format of the summary API: only what the runtime can tell.
type (
	cpu struct {
		Time                 metav1.Time `json:"time"`
		UsageNanoCores       *uint64     `json:"usageNanoCores,omitempty"`
		UsageCoreNanoSeconds *uint64     `json:"usageCoreNanoSeconds,omitempty"`
	}
	memory struct {
		Time            metav1.Time `json:"time"`
		UsageBytes      *uint64     `json:"usageBytes,omitempty"`
		WorkingSetBytes *uint64     `json:"workingSetBytes,omitempty"`
		RSSBytes        *uint64     `json:"rssBytes,omitempty"`
	}
	container struct {
		Name   string  `json:"name"`
		CPU    *cpu    `json:"cpu,omitempty"`
		Memory *memory `json:"memory,omitempty"`
	}
	podRef struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	}
	pod struct {
		Ref        podRef      `json:"podRef"`
		Containers []container `json:"containers"`
	}
	node struct {
		Name string `json:"nodeName"`
	}
	summary struct {
		Node node  `json:"node"`
		Pods []pod `json:"pods"`
	}
)

// Summary serves /stats/summary.
func (s *Source) Summary(w http.ResponseWriter, r *http.Request) {
	pods, err := s.pods(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(summary{Node: node{s.NodeName}, Pods: pods}) // the client may have gone
}

// Metrics serves /metrics/resource in Prometheus' text format.
func (s *Source) Metrics(w http.ResponseWriter, r *http.Request) {
	pods, err := s.pods(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	writeMetric(w, "container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds", pods,
		func(c container) (float64, time.Time, bool) {
			if c.CPU == nil || c.CPU.UsageCoreNanoSeconds == nil {
				return 0, time.Time{}, false
			}
			return float64(*c.CPU.UsageCoreNanoSeconds) / 1e9, c.CPU.Time.Time, true
		})
	writeMetric(w, "container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes", pods,
		func(c container) (float64, time.Time, bool) {
			if c.Memory == nil || c.Memory.WorkingSetBytes == nil {
				return 0, time.Time{}, false
			}
			return float64(*c.Memory.WorkingSetBytes), c.Memory.Time.Time, true
		})
}

func writeMetric(w io.Writer, name, kind, help string, pods []pod, value func(container) (float64, time.Time, bool)) {
	_, _ = fmt.Fprintf(w, "# HELP %s [STABLE] %s\n# TYPE %s %s\n", name, help, name, kind) // the client may have gone
	for _, p := range pods {
		for _, c := range p.Containers {
			if v, at, ok := value(c); ok {
				_, _ = fmt.Fprintf(w, "%s{container=%q,namespace=%q,pod=%q} %g %d\n", name, c.Name, p.Ref.Namespace, p.Ref.Name, v, at.UnixMilli())
			}
		}
	}
}

func (s *Source) pods(ctx context.Context) ([]pod, error) {
	resp, err := s.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list container stats: %w", err)
	}
	at := map[string]int{}
	out := []pod{}
	for _, st := range resp.GetStats() {
		l := st.GetAttributes().GetLabels()
		uid := l[observed.LabelPodUID]
		if uid == "" {
			continue
		}
		i, ok := at[uid]
		if !ok {
			i = len(out)
			at[uid] = i
			out = append(out, pod{Ref: podRef{Name: l[observed.LabelPodName], Namespace: l[observed.LabelPodNamespace], UID: uid}})
		}
		out[i].Containers = append(out[i].Containers, containerOf(l[observed.LabelContainerName], st))
	}
	return out, nil
}

func containerOf(name string, st *runtimeapi.ContainerStats) container {
	c := container{Name: name}
	if u := st.GetCpu(); u != nil {
		c.CPU = &cpu{Time: stamp(u.GetTimestamp()), UsageNanoCores: value(u.GetUsageNanoCores()), UsageCoreNanoSeconds: value(u.GetUsageCoreNanoSeconds())}
	}
	if m := st.GetMemory(); m != nil {
		c.Memory = &memory{
			Time: stamp(m.GetTimestamp()), UsageBytes: value(m.GetUsageBytes()), WorkingSetBytes: value(m.GetWorkingSetBytes()), RSSBytes: value(m.GetRssBytes()),
		}
	}
	return c
}

func stamp(ns int64) metav1.Time { return metav1.NewTime(time.Unix(0, ns)) }

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}
