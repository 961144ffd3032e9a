// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// ContainerStats returns a container's usage; one that does not run has disk usage only.
func (s *Server) ContainerStats(
	_ context.Context, r *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := s.table.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.containerStats(c)
	if err != nil {
		return nil, fault.Wrap(err, "stats of container %s", c.ID)
	}
	return &runtimeapi.ContainerStatsResponse{Stats: st}, nil
}

// ListContainerStats returns the usage of running containers.
func (s *Server) ListContainerStats(
	_ context.Context, r *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	q := r.GetFilter()
	out := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range s.table.Containers(q.GetId(), q.GetPodSandboxId(), q.GetLabelSelector()) {
		rec := c.Record()
		if rec.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		st, err := s.containerStats(c)
		if err != nil {
			return nil, fault.Wrap(err, "stats of container %s", c.ID)
		}
		out.Stats = append(out.Stats, st)
	}
	return out, nil
}

func (s *Server) containerStats(ctr *pods.Container) (*runtimeapi.ContainerStats, error) {
	record := ctr.Record()
	now := time.Now()
	st := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          record.ID,
			Metadata:    record.Config.V.GetMetadata(),
			Labels:      record.Config.V.GetLabels(),
			Annotations: record.Config.V.GetAnnotations(),
		},
		WritableLayer: s.diskUsage(ctr, now),
	}
	if record.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return st, nil
	}
	u, err := s.cgroups.Usage(record.CgroupPath)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil // it just ended
	}
	if err != nil {
		return nil, err
	}
	st.Cpu, st.Memory = usage(u, now, &ctr.CPU)
	st.Swap = &runtimeapi.SwapUsage{Timestamp: now.UnixNano(), SwapUsageBytes: value(u.Swap)}
	return st, nil
}

func usage(cgroupUsage linux.CgroupUsage, now time.Time, cpu *pods.Rate) (*runtimeapi.CpuUsage, *runtimeapi.MemoryUsage) {
	t := now.UnixNano()
	memoryUsage := &runtimeapi.MemoryUsage{
		Timestamp:       t,
		WorkingSetBytes: value(cgroupUsage.WorkingSet),
		UsageBytes:      value(cgroupUsage.Memory),
		RssBytes:        value(cgroupUsage.RSS),
		PageFaults:      value(cgroupUsage.PageFaults),
		MajorPageFaults: value(cgroupUsage.MajorPageFaults),
	}
	if cgroupUsage.MemoryLimit > 0 {
		memoryUsage.AvailableBytes = value(cgroupUsage.MemoryLimit - min(cgroupUsage.MemoryLimit,
			cgroupUsage.WorkingSet))
	}
	var rate *runtimeapi.UInt64Value
	if n, known := cpu.Next(now, cgroupUsage.CPU); known {
		rate = value(n)
	}
	return &runtimeapi.CpuUsage{
		Timestamp:            t,
		UsageCoreNanoSeconds: value(cgroupUsage.CPU),
		UsageNanoCores:       rate,
	}, memoryUsage
}

func (s *Server) diskUsage(ctr *pods.Container, now time.Time) *runtimeapi.FilesystemUsage {
	disk, err := ctr.Disk.Usage(now, func() (bytes, inodes int64, err error) {
		u, err := s.cfg.Snapshots.Usage(ctr.ID)
		return u.Bytes, u.Inodes, err
	})
	if err != nil {
		return nil
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp:  disk.At.UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.cfg.Snapshots.Path(ctr.ID)},
		UsedBytes:  value(uint64(disk.Bytes)),
		InodesUsed: value(uint64(disk.Inodes)),
	}
}

// PodSandboxStats returns the usage of a pod and its containers.
func (s *Server) PodSandboxStats(
	_ context.Context, r *runtimeapi.PodSandboxStatsRequest,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	sb, err := s.table.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.podStats(sb)
	if err != nil {
		return nil, fault.Wrap(err, "stats of pod sandbox %s", sb.ID)
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: st}, nil
}

// ListPodSandboxStats returns the usage of ready pods.
func (s *Server) ListPodSandboxStats(
	_ context.Context, r *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	out := &runtimeapi.ListPodSandboxStatsResponse{}
	for _, sb := range s.table.Sandboxes(r.GetFilter().GetId(), r.GetFilter().GetLabelSelector()) {
		if !sb.Record().Ready {
			continue
		}
		st, err := s.podStats(sb)
		if err != nil {
			return nil, fault.Wrap(err, "stats of pod sandbox %s", sb.ID)
		}
		out.Stats = append(out.Stats, st)
	}
	return out, nil
}

func (s *Server) podStats(sb *pods.Sandbox) (*runtimeapi.PodSandboxStats, error) {
	rec := sb.Record()
	now := time.Now()
	stats := &runtimeapi.LinuxPodSandboxStats{}
	for _, c := range s.table.ContainersOf(sb.ID) {
		if rec := c.Record(); rec.State() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			st, err := s.containerStats(c)
			if err != nil {
				return nil, err
			}
			stats.Containers = append(stats.Containers, st)
		}
	}
	cgroup := s.cgroups.OfPod(&rec)
	u, err := s.cgroups.Usage(cgroup)
	if cgroup == s.cgroups.Parent() { // it is shared by all pods
		stats.Cpu, stats.Memory = sum(stats.Containers, now)
	} else if err == nil {
		stats.Cpu, stats.Memory = usage(u, now, &sb.CPU)
		stats.Process = &runtimeapi.ProcessUsage{Timestamp: now.UnixNano(), ProcessCount: value(u.Processes)}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if rec.Ready && slices.Contains(rec.OwnNamespaces(), linux.NetworkNamespace) {
		stats.Network = networkUsage(sb.NS(linux.NetworkNamespace), now)
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id:          rec.ID,
			Metadata:    rec.Config.V.GetMetadata(),
			Labels:      rec.Config.V.GetLabels(),
			Annotations: rec.Config.V.GetAnnotations(),
		},
		Linux: stats,
	}, nil
}

// sum adds up the containers' usage, for a pod without a cgroup of its own; nil when nothing runs.
func sum(containers []*runtimeapi.ContainerStats, now time.Time) (*runtimeapi.CpuUsage, *runtimeapi.MemoryUsage) {
	if len(containers) == 0 {
		return nil, nil
	}
	add := func(of func(*runtimeapi.ContainerStats) *runtimeapi.UInt64Value) *runtimeapi.UInt64Value {
		var out *runtimeapi.UInt64Value
		for _, c := range containers {
			if v := of(c); v != nil {
				out = value(out.GetValue() + v.GetValue())
			}
		}
		return out
	}
	type stats = runtimeapi.ContainerStats
	type number = runtimeapi.UInt64Value
	cpu := &runtimeapi.CpuUsage{
		Timestamp:            now.UnixNano(),
		UsageCoreNanoSeconds: add(func(c *stats) *number { return c.GetCpu().GetUsageCoreNanoSeconds() }),
		UsageNanoCores:       add(func(c *stats) *number { return c.GetCpu().GetUsageNanoCores() }),
	}
	memory := &runtimeapi.MemoryUsage{
		Timestamp:       now.UnixNano(),
		WorkingSetBytes: add(func(c *stats) *number { return c.GetMemory().GetWorkingSetBytes() }),
		UsageBytes:      add(func(c *stats) *number { return c.GetMemory().GetUsageBytes() }),
		RssBytes:        add(func(c *stats) *number { return c.GetMemory().GetRssBytes() }),
		PageFaults:      add(func(c *stats) *number { return c.GetMemory().GetPageFaults() }),
		MajorPageFaults: add(func(c *stats) *number { return c.GetMemory().GetMajorPageFaults() }),
	}
	return cpu, memory
}

// networkUsage reads the counters of the pod's interfaces; nil when it cannot, because the pod is being removed.
func networkUsage(ns string, now time.Time) *runtimeapi.NetworkUsage {
	all := interfaces(ns)
	if all == nil {
		return nil
	}
	out := &runtimeapi.NetworkUsage{Timestamp: now.UnixNano()}
	for _, counters := range all {
		if counters.name == "lo" {
			continue
		}
		i := &runtimeapi.NetworkInterfaceUsage{
			Name:     counters.name,
			RxBytes:  value(counters.rx[0]),
			RxErrors: value(counters.rx[2]),
			TxBytes:  value(counters.tx[0]),
			TxErrors: value(counters.tx[2]),
		}
		if out.DefaultInterface == nil || counters.name == "eth0" {
			out.DefaultInterface = i
		}
		out.Interfaces = append(out.Interfaces, i)
	}
	return out
}

// counters holds bytes, packets, errors and drops of one interface, received and sent.
type counters struct {
	name   string
	rx, tx [4]uint64
}

// interfaces reads the counters of the interfaces of a network namespace; nil when it cannot.
func interfaces(ns string) []counters {
	var raw []byte
	err := linux.InNetwork(ns, func() (err error) {
		raw, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return nil
	}
	return parseInterfaces(string(raw))
}

// parseInterfaces reads /proc/net/dev: two lines of heading, then "name:" with eight numbers received and eight sent,
// the first four of which are bytes, packets, errors, dropped.
func parseInterfaces(dev string) []counters {
	var out []counters
	for line := range strings.Lines(dev) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 12 {
			continue
		}
		c := counters{name: strings.TrimSpace(name)}
		for i := range 4 {
			c.rx[i], _ = strconv.ParseUint(f[i], 10, 64) // the kernel writes numbers
			c.tx[i], _ = strconv.ParseUint(f[8+i], 10, 64)
		}
		out = append(out, c)
	}
	return out
}
