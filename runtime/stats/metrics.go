// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// metricsInput holds the values that a container's metrics are computed from.
type metricsInput struct {
	now    time.Time
	rec    pods.ContainerRecord
	stats  *runtimeapi.ContainerStats
	detail linux.CgroupDetail
	disk   unix.Statfs_t
}

// podMetric is one metric of a container, with cAdvisor's name. keys and values are labels after those of metricLabels.
type podMetric struct {
	name, help string
	kind       runtimeapi.MetricType
	of         func(*metricsInput) uint64
	keys       []string
	values     []string
}

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
	second  = uint64(time.Second)
)

// byDevice is the label key of disk metrics; the value is empty for the sum of all block devices.
var byDevice = []string{"device"}

func unixSeconds(t time.Time) uint64 { return uint64(max(0, t.Unix())) }

func resources(r *metricsInput) *runtimeapi.LinuxContainerResources {
	return r.rec.Config.V.GetLinux().GetResources()
}

// nonNegative returns 0 for negative numbers.
func nonNegative(n int64) uint64 { return uint64(max(0, n)) }

var podMetrics = []podMetric{
	{
		name: "container_cpu_usage_seconds_total",
		help: "Processor time used, in seconds.",
		kind: counter,
		of: func(r *metricsInput) uint64 {
			return r.stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() / second
		},
		keys:   []string{"cpu"},
		values: []string{"total"},
	},
	{
		name: "container_cpu_user_seconds_total",
		help: "Processor time used by programs, in seconds.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.CPUUser / second },
	},
	{
		name: "container_cpu_system_seconds_total",
		help: "Processor time used by the kernel, in seconds.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.CPUSystem / second },
	},
	{
		name: "container_cpu_cfs_periods_total",
		help: "Periods in which a processor limit was in force.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.Periods },
	},
	{
		name: "container_cpu_cfs_throttled_periods_total",
		help: "Periods in which the processor limit was reached.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.Throttled },
	},
	{
		name: "container_cpu_cfs_throttled_seconds_total",
		help: "Time the container was throttled, in seconds.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.ThrottledTime / second },
	},
	{
		name: "container_memory_usage_bytes",
		help: "Memory used, with page cache.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.stats.GetMemory().GetUsageBytes().GetValue() },
	},
	{
		name: "container_memory_working_set_bytes",
		help: "Memory in use, without inactive page cache.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.stats.GetMemory().GetWorkingSetBytes().GetValue() },
	},
	{
		name: "container_memory_rss",
		help: "Anonymous memory.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.stats.GetMemory().GetRssBytes().GetValue() },
	},
	{
		name: "container_memory_cache",
		help: "Page cache.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Cache },
	},
	{
		name: "container_memory_mapped_file",
		help: "Mapped files.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Mapped },
	},
	{
		name: "container_memory_kernel_usage",
		help: "Memory that the kernel uses for the container.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Kernel },
	},
	{
		name: "container_memory_max_usage_bytes",
		help: "The most memory ever used.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.MaxMemory },
	},
	{
		name: "container_memory_swap",
		help: "Swap used.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.stats.GetSwap().GetSwapUsageBytes().GetValue() },
	},
	{
		name: "container_memory_failcnt",
		help: "How often the memory limit was reached.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.MemoryFailures },
	},
	{
		name:   "container_memory_failures_total",
		help:   "Page faults.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.stats.GetMemory().GetPageFaults().GetValue() },
		keys:   []string{"failure_type", "scope"},
		values: []string{"pgfault", "container"},
	},
	{
		name:   "container_memory_failures_total",
		help:   "Page faults.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.stats.GetMemory().GetMajorPageFaults().GetValue() },
		keys:   []string{"failure_type", "scope"},
		values: []string{"pgmajfault", "container"},
	},
	{
		name: "container_oom_events_total",
		help: "Processes killed by the kernel for lack of memory.",
		kind: counter,
		of:   func(r *metricsInput) uint64 { return r.detail.OOMKills },
	},
	{
		name: "container_processes",
		help: "Processes.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Processes },
	},
	{
		name: "container_threads",
		help: "Threads.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Threads },
	},
	{
		name: "container_threads_max",
		help: "Threads allowed, 0 when unlimited.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.ThreadsMax },
	},
	{
		name: "container_file_descriptors",
		help: "Open descriptors.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Files },
	},
	{
		name: "container_sockets",
		help: "Open sockets.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.detail.Sockets },
	},
	{
		name: "container_fs_usage_bytes",
		help: "What the container has written to its root file system.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.stats.GetWritableLayer().GetUsedBytes().GetValue() },
	},
	{
		name: "container_fs_limit_bytes",
		help: "Size of the disk below the root file system.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.disk.Blocks * nonNegative(r.disk.Bsize) },
	},
	{
		name: "container_fs_inodes_total",
		help: "Inodes of that disk.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.disk.Files },
	},
	{
		name: "container_fs_inodes_free",
		help: "Free inodes of that disk.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return r.disk.Ffree },
	},
	{
		name:   "container_fs_reads_total",
		help:   "Reads from block devices.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.detail.Reads },
		keys:   byDevice,
		values: []string{""},
	},
	{
		name:   "container_fs_writes_total",
		help:   "Writes to block devices.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.detail.Writes },
		keys:   byDevice,
		values: []string{""},
	},
	{
		name:   "container_fs_reads_bytes_total",
		help:   "Bytes read from block devices.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.detail.BytesRead },
		keys:   byDevice,
		values: []string{""},
	},
	{
		name:   "container_fs_writes_bytes_total",
		help:   "Bytes written to block devices.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.detail.BytesWrit },
		keys:   byDevice,
		values: []string{""},
	},
	{
		name:   "container_blkio_device_usage_total",
		help:   "Bytes moved from and to block devices.",
		kind:   counter,
		of:     func(r *metricsInput) uint64 { return r.detail.BytesRead + r.detail.BytesWrit },
		keys:   byDevice,
		values: []string{""},
	},
	{
		name: "container_spec_cpu_period",
		help: "Period of the processor limit, in microseconds.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return nonNegative(resources(r).GetCpuPeriod()) },
	},
	{
		name: "container_spec_cpu_shares",
		help: "Weight of the container.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return nonNegative(resources(r).GetCpuShares()) },
	},
	{
		name: "container_spec_memory_limit_bytes",
		help: "Memory limit, 0 when unlimited.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return nonNegative(resources(r).GetMemoryLimitInBytes()) },
	},
	{
		name: "container_spec_memory_swap_limit_bytes",
		help: "Limit of memory and swap, 0 when unlimited.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return nonNegative(resources(r).GetMemorySwapLimitInBytes()) },
	},
	{
		name: "container_start_time_seconds",
		help: "When it started, in seconds since 1970.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return unixSeconds(r.rec.Started) },
	},
	{
		name: "container_last_seen",
		help: "When this was read, in seconds since 1970.",
		kind: gauge,
		of:   func(r *metricsInput) uint64 { return unixSeconds(r.now) },
	},
}

// netMetric is one metric of a network interface of a pod.
type netMetric struct {
	name, help string
	of         func(*counters) uint64
}

var netMetrics = []netMetric{
	{"container_network_receive_bytes_total", "Bytes received.", func(c *counters) uint64 { return c.rx[0] }},
	{"container_network_receive_packets_total", "Packets received.", func(c *counters) uint64 { return c.rx[1] }},
	{"container_network_receive_errors_total", "Packets received in error.", func(c *counters) uint64 {
		return c.rx[2]
	}},
	{"container_network_receive_packets_dropped_total", "Packets received and dropped.", func(c *counters) uint64 {
		return c.rx[3]
	}},
	{"container_network_transmit_bytes_total", "Bytes sent.", func(c *counters) uint64 { return c.tx[0] }},
	{"container_network_transmit_packets_total", "Packets sent.", func(c *counters) uint64 { return c.tx[1] }},
	{"container_network_transmit_errors_total", "Packets not sent for an error.", func(c *counters) uint64 {
		return c.tx[2]
	}},
	{
		"container_network_transmit_packets_dropped_total", "Packets dropped before they were sent.",
		func(c *counters) uint64 { return c.tx[3] },
	},
}

// metricLabels are the label keys of every metric, in order.
var metricLabels = []string{"id", "name", "image"}

// Descriptors describes the metrics of Metrics.
func Descriptors() []*runtimeapi.MetricDescriptor {
	var out []*runtimeapi.MetricDescriptor
	last := ""
	for _, m := range podMetrics {
		if m.name != last { // a metric is in the list once for each set of label values
			out = append(out, &runtimeapi.MetricDescriptor{
				Name:      m.name,
				Help:      m.help,
				LabelKeys: slices.Concat(metricLabels, m.keys),
			})
		}
		last = m.name
	}
	for _, m := range netMetrics {
		out = append(out, &runtimeapi.MetricDescriptor{
			Name:      m.name,
			Help:      m.help,
			LabelKeys: slices.Concat(metricLabels, []string{"interface"}),
		})
	}
	return out
}

// Metrics reads the metrics of the running containers of ready pods.
func (r *Reader) Metrics() ([]*runtimeapi.PodSandboxMetrics, error) {
	var out []*runtimeapi.PodSandboxMetrics
	for _, sb := range r.table.Sandboxes("", nil) {
		if !sb.Record().Ready {
			continue
		}
		pod := &runtimeapi.PodSandboxMetrics{PodSandboxId: sb.ID, Metrics: networkMetrics(sb)}
		for _, c := range r.table.ContainersOf(sb.ID) {
			m, err := r.containerMetrics(c)
			if err != nil {
				return nil, fault.Wrap(err, "metrics of container %s", c.ID)
			}
			if m != nil {
				pod.ContainerMetrics = append(pod.ContainerMetrics, m)
			}
		}
		out = append(out, pod)
	}
	return out, nil
}

// containerMetrics returns nil for a container that does not run.
func (r *Reader) containerMetrics(ctr *pods.Container) (*runtimeapi.ContainerMetrics, error) {
	in := metricsInput{now: time.Now(), rec: ctr.Record()}
	if !in.rec.Running() {
		return nil, nil
	}
	var err error
	if in.stats, err = r.ofContainer(ctr); err != nil {
		return nil, err
	}
	if in.detail, err = r.cgroups.Detail(in.rec.CgroupPath); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it just ended
	} else if err != nil {
		return nil, err
	}
	if err := unix.Statfs(r.dir, &in.disk); err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerMetrics{ContainerId: ctr.ID}
	labels := []string{ctr.ID, in.rec.Config.V.GetMetadata().GetName(), in.rec.Image().GetImage()}
	for _, m := range podMetrics {
		out.Metrics = append(out.Metrics, &runtimeapi.Metric{
			Name:        m.name,
			Timestamp:   in.now.UnixNano(),
			MetricType:  m.kind,
			LabelValues: slices.Concat(labels, m.values),
			Value:       value(m.of(&in)),
		})
	}
	return out, nil
}

// networkMetrics returns the counters of the pod's interfaces.
func networkMetrics(sb *pods.Sandbox) []*runtimeapi.Metric {
	rec := sb.Record()
	if !slices.Contains(rec.OwnNamespaces(), linux.NetworkNamespace) {
		return nil
	}
	now := time.Now()
	var out []*runtimeapi.Metric
	for _, c := range interfaces(sb.NS(linux.NetworkNamespace)) {
		if c.name == "lo" {
			continue
		}
		for _, m := range netMetrics {
			out = append(out, &runtimeapi.Metric{
				Name:        m.name,
				Timestamp:   now.UnixNano(),
				MetricType:  counter,
				Value:       value(m.of(&c)),
				LabelValues: []string{sb.ID, rec.Config.V.GetMetadata().GetName(), "", c.name},
			})
		}
	}
	return out
}
