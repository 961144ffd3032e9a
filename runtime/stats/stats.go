// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/cgroup"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/snapshot"
)

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

// Reader reads the usage of the containers and pods of a table.
type Reader struct {
	table     *pods.Table
	cgroups   *cgroup.Tree
	snapshots *snapshot.Store
	dir       string
}

// New makes a Reader; dir is on the file system of the containers' root file systems.
func New(table *pods.Table, cgroups *cgroup.Tree, snapshots *snapshot.Store, dir string) *Reader {
	return &Reader{
		table:     table,
		cgroups:   cgroups,
		snapshots: snapshots,
		dir:       dir,
	}
}

// Container returns a container's usage; one that does not run has disk usage only.
func (r *Reader) Container(id string) (*runtimeapi.ContainerStats, error) {
	c, err := r.table.Container(id)
	if err != nil {
		return nil, err
	}
	st, err := r.ofContainer(c)
	return st, fault.Wrap(err, "stats of container %s", c.ID)
}

// Containers returns the usage of running containers.
func (r *Reader) Containers(q *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	var out []*runtimeapi.ContainerStats
	for _, c := range r.table.Containers(q.GetId(), q.GetPodSandboxId(), q.GetLabelSelector()) {
		if rec := c.Record(); !rec.Running() {
			continue
		}
		st, err := r.ofContainer(c)
		if err != nil {
			return nil, fault.Wrap(err, "stats of container %s", c.ID)
		}
		out = append(out, st)
	}
	return out, nil
}

func (r *Reader) ofContainer(ctr *pods.Container) (*runtimeapi.ContainerStats, error) {
	record := ctr.Record()
	now := time.Now()
	st := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          record.ID,
			Metadata:    record.Config.V.GetMetadata(),
			Labels:      record.Config.V.GetLabels(),
			Annotations: record.Config.V.GetAnnotations(),
		},
		WritableLayer: r.diskUsage(ctr, now),
	}
	if record.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return st, nil
	}
	u, err := r.cgroups.Usage(record.CgroupPath)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil // it just ended
	}
	if err != nil {
		return nil, err
	}
	st.Cpu, st.Memory = usage(u, now, &ctr.CPU)
	st.Io = ioUsage(u, now)
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
		Psi:             pressure(cgroupUsage.Pressures.Memory),
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
		Psi:                  pressure(cgroupUsage.Pressures.CPU),
	}, memoryUsage
}

func (r *Reader) diskUsage(ctr *pods.Container, now time.Time) *runtimeapi.FilesystemUsage {
	disk, err := ctr.Disk.Usage(now, func() (bytes, inodes int64, err error) {
		u, err := r.snapshots.Usage(ctr.ID)
		return u.Bytes, u.Inodes, err
	})
	if err != nil {
		return nil
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp:  disk.At.UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: r.snapshots.Path(ctr.ID)},
		UsedBytes:  value(uint64(disk.Bytes)),
		InodesUsed: value(uint64(disk.Inodes)),
	}
}

// Pod returns the usage of a pod and its containers.
func (r *Reader) Pod(id string) (*runtimeapi.PodSandboxStats, error) {
	sb, err := r.table.Sandbox(id)
	if err != nil {
		return nil, err
	}
	st, err := r.ofPod(sb)
	return st, fault.Wrap(err, "stats of pod sandbox %s", sb.ID)
}

// Pods returns the usage of ready pods.
func (r *Reader) Pods(q *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	var out []*runtimeapi.PodSandboxStats
	for _, sb := range r.table.Sandboxes(q.GetId(), q.GetLabelSelector()) {
		if !sb.Record().Ready {
			continue
		}
		st, err := r.ofPod(sb)
		if err != nil {
			return nil, fault.Wrap(err, "stats of pod sandbox %s", sb.ID)
		}
		out = append(out, st)
	}
	return out, nil
}

func (r *Reader) ofPod(sb *pods.Sandbox) (*runtimeapi.PodSandboxStats, error) {
	rec := sb.Record()
	now := time.Now()
	stats := &runtimeapi.LinuxPodSandboxStats{}
	for _, c := range r.table.ContainersOf(sb.ID) {
		if rec := c.Record(); rec.State() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			st, err := r.ofContainer(c)
			if err != nil {
				return nil, err
			}
			stats.Containers = append(stats.Containers, st)
		}
	}
	cgroup := r.cgroups.OfPod(&rec)
	u, err := r.cgroups.Usage(cgroup)
	if cgroup == r.cgroups.Parent() { // it is shared by all pods
		stats.Cpu, stats.Memory = sum(stats.Containers, now)
	} else if err == nil {
		stats.Cpu, stats.Memory = usage(u, now, &sb.CPU)
		stats.Io = ioUsage(u, now)
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

// ioUsage is how long a cgroup waited for disks; nil: the kernel does not say.
func ioUsage(u linux.CgroupUsage, now time.Time) *runtimeapi.IoUsage {
	psi := pressure(u.Pressures.IO)
	if psi == nil {
		return nil
	}
	return &runtimeapi.IoUsage{Timestamp: now.UnixNano(), Psi: psi}
}

func pressure(p *linux.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	data := func(s linux.Stall) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{
			Total:  s.Total,
			Avg10:  s.Avg10,
			Avg60:  s.Avg60,
			Avg300: s.Avg300,
		}
	}
	return &runtimeapi.PsiStats{Some: data(p.Some), Full: data(p.Full)}
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
