// SPDX-License-Identifier: Apache-2.0

// Package stats serves /stats/summary and /metrics/resource from statistics of the runtime and the kernel, and
// implements eviction.Source. The kubelet's server calls it for each request, and package eviction on its timer. It
// never measures without a caller, and writes nothing.
package stats

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/csi"
	"keelson/kubelet/runtimestate"
)

// Source measures the node and its pods; see New.
type Source struct {
	Config
	meter *Meter

	cpu nodeRate

	mu     sync.Mutex
	asked  bool   // imageDir has the runtime's answer
	images string // the image directory; empty: the runtime does not report it
}

// Config has the dependencies of a Source.
type Config struct {
	Runtime  runtimeapi.RuntimeServiceClient
	Images   runtimeapi.ImageServiceClient // may be nil
	NodeName string
	// RootDir is on the node's file system; LogDir holds the pods' log directories.
	RootDir, LogDir string
	// VolumePath returns the path of a pod's volume.
	VolumePath func(ctx context.Context, p *corev1.Pod, volume string) (string, error)
	// ClaimUsage returns capacity and usage of a claim's volume; nil: not known. May be nil.
	ClaimUsage func(ctx context.Context, p *corev1.Pod, volume string) *csi.Usage
	// Pods returns the pods of the node.
	Pods func() []*corev1.Pod
}

// New returns a Source. It measures nothing yet.
func New(cfg Config) *Source { return &Source{Config: cfg, meter: NewMeter()} }

// Summary serves /stats/summary. With only_cpu_and_memory=true it measures only these.
func (s *Source) Summary(w http.ResponseWriter, r *http.Request) {
	pods, err := s.pods(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	node, err := s.node(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if only, err := strconv.ParseBool(r.URL.Query().Get("only_cpu_and_memory")); err == nil && only {
		node.Fs = nil
		node.Runtime = nil
		node.Rlimit = nil
		for i := range pods {
			p := &pods[i]
			p.Network = nil
			p.Processes = nil
			for j := range p.Containers {
				p.Containers[j].Rootfs = nil
			}
		}
	} else {
		s.addDisk(r.Context(), pods)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(summary{Node: node, Pods: pods}) // the client may have gone
}

// pods returns the statistics of pods with a ready sandbox, without volumes and logs.
func (s *Source) pods(ctx context.Context) ([]pod, error) {
	resp, err := s.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod stats: %w", err)
	}
	started, err := s.started(ctx)
	if err != nil {
		return nil, err
	}
	out := []pod{}
	for _, st := range resp.GetStats() {
		l := st.GetAttributes().GetLabels()
		uid := l[runtimestate.LabelPodUID]
		if uid == "" {
			continue
		}
		p := pod{
			Ref: podRef{
				Name:      l[runtimestate.LabelPodName],
				Namespace: l[runtimestate.LabelPodNamespace],
				UID:       uid,
			},
			Start:      stamp(started[st.GetAttributes().GetId()]),
			Containers: []container{},
			CPU:        cpuOf(st.GetLinux().GetCpu()),
			Memory:     memoryOfUsage(st.GetLinux().GetMemory()),
			IO:         ioOf(st.GetLinux().GetIo()),
			Network:    networkOf(st.GetLinux().GetNetwork()),
		}
		if n := value(st.GetLinux().GetProcess().GetProcessCount()); n != nil {
			p.Processes = &processStats{n}
		}
		for _, c := range st.GetLinux().GetContainers() {
			name := c.GetAttributes().GetLabels()[runtimestate.LabelContainerName]
			if name == "" {
				name = c.GetAttributes().GetMetadata().GetName()
			}
			p.Containers = append(p.Containers, containerOf(name, started[c.GetAttributes().GetId()], c))
		}
		out = append(out, p)
	}
	return out, nil
}

// started returns the creation time of running containers and sandboxes by ID, in nanoseconds. CRI statistics do not
// have it.
func (s *Source) started(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	containers, err := s.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers.GetContainers() {
		out[c.GetId()] = c.GetCreatedAt()
	}
	sandboxes, err := s.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{
			State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("list pod sandboxes: %w", err)
	}
	for _, sb := range sandboxes.GetItems() {
		out[sb.GetId()] = sb.GetCreatedAt()
	}
	return out, nil
}

func containerOf(name string, start int64, st *runtimeapi.ContainerStats) container {
	ctr := container{
		Name:   name,
		Start:  stamp(start),
		CPU:    cpuOf(st.GetCpu()),
		Memory: memoryOfUsage(st.GetMemory()),
		IO:     ioOf(st.GetIo()),
	}
	if u := st.GetSwap(); u != nil {
		ctr.Swap = &swap{
			Time:       stamp(u.GetTimestamp()),
			UsageBytes: value(u.GetSwapUsageBytes()),
			AvailableBytes: value(
				u.GetSwapAvailableBytes()),
		}
	}
	if d := layer(st); d != nil {
		ctr.Rootfs = usageStats(*d)
	}
	return ctr
}

func cpuOf(u *runtimeapi.CpuUsage) *cpu {
	if u == nil {
		return nil
	}
	return &cpu{
		Time:                 stamp(u.GetTimestamp()),
		UsageNanoCores:       value(u.GetUsageNanoCores()),
		UsageCoreNanoSeconds: value(u.GetUsageCoreNanoSeconds()),
		PSI:                  pressureOf(u.GetPsi()),
	}
}

func memoryOfUsage(memoryUsage *runtimeapi.MemoryUsage) *memory {
	if memoryUsage == nil {
		return nil
	}
	return &memory{
		Time:            stamp(memoryUsage.GetTimestamp()),
		AvailableBytes:  value(memoryUsage.GetAvailableBytes()),
		UsageBytes:      value(memoryUsage.GetUsageBytes()),
		WorkingSetBytes: value(memoryUsage.GetWorkingSetBytes()),
		RSSBytes:        value(memoryUsage.GetRssBytes()),
		PageFaults:      value(memoryUsage.GetPageFaults()),
		MajorPageFaults: value(memoryUsage.GetMajorPageFaults()),
		PSI:             pressureOf(memoryUsage.GetPsi()),
	}
}

func networkOf(networkUsage *runtimeapi.NetworkUsage) *network {
	if networkUsage == nil {
		return nil
	}
	of := func(i *runtimeapi.NetworkInterfaceUsage) netInterface {
		return netInterface{
			Name:     i.GetName(),
			RxBytes:  value(i.GetRxBytes()),
			RxErrors: value(i.GetRxErrors()),
			TxBytes:  value(i.GetTxBytes()),
			TxErrors: value(i.GetTxErrors()),
		}
	}
	n := &network{Time: stamp(networkUsage.GetTimestamp()), netInterface: of(networkUsage.GetDefaultInterface())}
	for _, i := range networkUsage.GetInterfaces() {
		n.Interfaces = append(n.Interfaces, of(i))
	}
	return n
}

func stamp(ns int64) metav1.Time {
	if ns == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(0, ns))
}

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}
