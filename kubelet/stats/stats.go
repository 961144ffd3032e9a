// SPDX-License-Identifier: Apache-2.0

// Package stats answers /stats/summary and /metrics/resource from what the runtime and the kernel measure, and feeds package eviction
// with the same figures. The kubelet's server calls it when somebody asks, and eviction on its timer; nothing is measured otherwise.
package stats

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/observed"
)

// Source measures. Make it with New.
type Source struct {
	Config
	meter *Meter

	mu     sync.Mutex
	asked  bool   // the runtime has said where images lie
	images string // where; empty: it does not say
}

// Config is what a Source looks at.
type Config struct {
	Runtime  runtimeapi.RuntimeServiceClient
	Images   runtimeapi.ImageServiceClient // may be nil
	NodeName string
	// RootDir is on the node's file system; LogDir holds the pods' log directories.
	RootDir, LogDir string
	// VolumePath is where a volume of a pod lies.
	VolumePath func(ctx context.Context, p *corev1.Pod, volume string) (string, error)
	// Pods are those of the node.
	Pods func() []*corev1.Pod
}

// New returns a Source that has measured nothing.
func New(cfg Config) *Source { return &Source{Config: cfg, meter: NewMeter()} }

// The wire format of the summary API: only what the runtime can tell.
type (
	cpu struct {
		Time                 metav1.Time `json:"time"`
		UsageNanoCores       *uint64     `json:"usageNanoCores,omitempty"`
		UsageCoreNanoSeconds *uint64     `json:"usageCoreNanoSeconds,omitempty"`
	}
	memory struct {
		Time            metav1.Time `json:"time"`
		AvailableBytes  *uint64     `json:"availableBytes,omitempty"`
		UsageBytes      *uint64     `json:"usageBytes,omitempty"`
		WorkingSetBytes *uint64     `json:"workingSetBytes,omitempty"`
		RSSBytes        *uint64     `json:"rssBytes,omitempty"`
	}
	fileSystem struct {
		Time           metav1.Time `json:"time"`
		AvailableBytes *uint64     `json:"availableBytes,omitempty"`
		CapacityBytes  *uint64     `json:"capacityBytes,omitempty"`
		UsedBytes      *uint64     `json:"usedBytes,omitempty"`
		InodesFree     *uint64     `json:"inodesFree,omitempty"`
		Inodes         *uint64     `json:"inodes,omitempty"`
		InodesUsed     *uint64     `json:"inodesUsed,omitempty"`
	}
	container struct {
		Name   string      `json:"name"`
		CPU    *cpu        `json:"cpu,omitempty"`
		Memory *memory     `json:"memory,omitempty"`
		Rootfs *fileSystem `json:"rootfs,omitempty"`
		Logs   *fileSystem `json:"logs,omitempty"`
	}
	volume struct {
		fileSystem
		Name string `json:"name"`
	}
	podRef struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	}
	pod struct {
		Ref        podRef      `json:"podRef"`
		Containers []container `json:"containers"`
		Volumes    []volume    `json:"volume,omitempty"`
		Ephemeral  *fileSystem `json:"ephemeral-storage,omitempty"`
	}
	node struct {
		Name    string        `json:"nodeName"`
		Memory  *memory       `json:"memory,omitempty"`
		Fs      *fileSystem   `json:"fs,omitempty"`
		Runtime *runtimeStats `json:"runtime,omitempty"`
		Rlimit  *rlimit       `json:"rlimit,omitempty"`
	}
	runtimeStats struct {
		ImageFs *fileSystem `json:"imageFs,omitempty"`
	}
	rlimit struct {
		Time      metav1.Time `json:"time"`
		MaxPID    *int64      `json:"maxpid,omitempty"`
		Processes *int64      `json:"curproc,omitempty"`
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
	s.addDisk(r.Context(), pods)
	n, err := s.node(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(summary{Node: n, Pods: pods}) // the client may have gone
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
	if d := layer(st); d != nil {
		c.Rootfs = taken(*d)
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
