// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/runtimestate"
)

// scrape collects the metrics of one request for /metrics/cadvisor. They have cAdvisor's names and labels, which
// dashboards select by: container, id, image, name, namespace, pod.
type scrape struct {
	boxes      map[string]owner // by sandbox id
	containers map[string]owner // by container id
	families   map[string]*cadvisorFamily
}

// cadvisorFamily is a metric with its samples, as text.
type cadvisorFamily struct {
	help, kind string
	samples    []string
	// measured: the samples come from statistics, which are finer than the whole numbers of CRI's metrics.
	measured bool
}

// owner has the labels of a container, or of a pod.
type owner struct{ container, id, image, name, namespace, pod string }

func (o owner) labels(more string) string {
	return fmt.Sprintf("{container=%q,id=%q,image=%q,name=%q,namespace=%q,pod=%q%s}", o.container, o.id, o.image,
		o.name, o.namespace, o.pod, more)
}

// Cadvisor serves /metrics/cadvisor in Prometheus' text format: first the runtime's statistics, which are finer than
// its metrics, then its metrics, which a runtime may lack. If something cannot be read, it is missing and
// container_scrape_error is 1.
func (s *Source) Cadvisor(w http.ResponseWriter, r *http.Request) {
	out := &scrape{
		boxes:      map[string]owner{},
		containers: map[string]owner{},
		families:   map[string]*cadvisorFamily{},
	}
	failed := 0
	for _, read := range []func(context.Context, *scrape) error{s.owners, s.measured, s.runtimeMetrics, s.machine} {
		if err := read(r.Context(), out); err != nil {
			failed = 1
		}
	}
	const errorName = "container_scrape_error"
	out.family(errorName, "gauge", "1 if there was an error while getting container metrics, 0 otherwise").
		add(sample(errorName, "", float64(failed), time.Time{}))
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, out.text()) // the client may have gone
}

func (c *scrape) family(name, kind, help string) *cadvisorFamily {
	if c.families[name] == nil {
		c.families[name] = &cadvisorFamily{kind: kind, help: help}
	}
	return c.families[name]
}

func (f *cadvisorFamily) add(s string) { f.samples = append(f.samples, s) }

func sample(name, labels string, value float64, at time.Time) string {
	if at.IsZero() {
		return fmt.Sprintf("%s%s %v\n", name, labels, value)
	}
	return fmt.Sprintf("%s%s %v %d\n", name, labels, value, at.UnixMilli())
}

// measure adds a sample from statistics; a nil value is none.
func (c *scrape) measure(name, kind, help, labels string, v *uint64, scale float64, at time.Time) {
	if v == nil {
		return
	}
	f := c.family(name, kind, help)
	f.measured = true
	f.add(sample(name, labels, float64(*v)*scale, at))
}

func (c *scrape) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.families)) {
		f := c.families[name]
		if len(f.samples) == 0 {
			continue
		}
		// a builder takes everything
		_, _ = fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, f.help, name, f.kind)
		for _, s := range f.samples {
			b.WriteString(s)
		}
	}
	return b.String()
}

// owners reads the labels of sandboxes and containers.
func (s *Source) owners(ctx context.Context, out *scrape) error {
	boxes, err := s.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pod sandboxes: %w", err)
	}
	for _, b := range boxes.GetItems() {
		l := b.GetLabels()
		if l[runtimestate.LabelPodUID] == "" {
			continue // not made by a kubelet
		}
		out.boxes[b.GetId()] = owner{
			id:        "/kubepods/pod" + l[runtimestate.LabelPodUID],
			namespace: l[runtimestate.LabelPodNamespace],
			pod:       l[runtimestate.LabelPodName],
		}
	}
	containers, err := s.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers.GetContainers() {
		of, ok := out.boxes[c.GetPodSandboxId()]
		if !ok {
			continue
		}
		of.id += "/" + c.GetId()
		of.name = c.GetId()
		of.container = c.GetMetadata().GetName()
		of.image = c.GetImage().GetUserSpecifiedImage()
		if of.image == "" {
			of.image = c.GetImage().GetImage()
		}
		out.containers[c.GetId()] = of
	}
	return nil
}

// measured adds what statistics have.
func (s *Source) measured(ctx context.Context, out *scrape) error {
	list, err := s.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return fmt.Errorf("list pod stats: %w", err)
	}
	for _, pod := range list.GetStats() {
		of, ok := out.boxes[pod.GetAttributes().GetId()]
		if !ok {
			continue
		}
		out.usage(of, pod.GetLinux().GetCpu(), pod.GetLinux().GetMemory())
		out.pressure(of, "io", pod.GetLinux().GetIo().GetPsi(), stamp(pod.GetLinux().GetIo().GetTimestamp()).Time)
		out.network(of, pod.GetLinux().GetNetwork())
		for _, c := range pod.GetLinux().GetContainers() {
			of, ok := out.containers[c.GetAttributes().GetId()]
			if !ok {
				continue
			}
			out.usage(of, c.GetCpu(), c.GetMemory())
			out.pressure(of, "io", c.GetIo().GetPsi(), stamp(c.GetIo().GetTimestamp()).Time)
			out.measure("container_memory_swap", "gauge", "Container swap usage in bytes.", of.labels(""),
				value(c.GetSwap().GetSwapUsageBytes()), 1, stamp(c.GetSwap().GetTimestamp()).Time)
			out.measure("container_fs_usage_bytes", "gauge",
				"Number of bytes that are consumed by the container on this filesystem.",
				of.labels(`,device=""`), value(c.GetWritableLayer().GetUsedBytes()), 1,
				stamp(c.GetWritableLayer().GetTimestamp()).Time)
		}
	}
	return nil
}

const (
	cpuName    = "container_cpu_usage_seconds_total"
	cpuHelp    = "Cumulative cpu time consumed in seconds."
	memoryName = "container_memory_working_set_bytes"
	memoryHelp = "Current working set in bytes."
)

func (c *scrape) usage(of owner, cpu *runtimeapi.CpuUsage, memory *runtimeapi.MemoryUsage) {
	labels := of.labels("")
	at := stamp(memory.GetTimestamp()).Time
	c.measure(cpuName, "counter", cpuHelp, of.labels(`,cpu="total"`), value(cpu.GetUsageCoreNanoSeconds()), perSecond,
		stamp(cpu.GetTimestamp()).Time)
	c.measure(memoryName, "gauge", memoryHelp, labels, value(memory.GetWorkingSetBytes()), 1, at)
	c.measure("container_memory_usage_bytes", "gauge", "Current memory usage in bytes, including all memory "+
		"regardless of when it was accessed.", labels, value(memory.GetUsageBytes()), 1, at)
	c.pressure(of, "cpu", cpu.GetPsi(), stamp(cpu.GetTimestamp()).Time)
	c.pressure(of, "memory", memory.GetPsi(), at)
	c.measure("container_memory_rss", "gauge", "Size of RSS in bytes.", labels, value(memory.GetRssBytes()), 1, at)
}

func (c *scrape) network(of owner, usage *runtimeapi.NetworkUsage) {
	at := stamp(usage.GetTimestamp()).Time
	all := append([]*runtimeapi.NetworkInterfaceUsage{usage.GetDefaultInterface()}, usage.GetInterfaces()...)
	for n, i := range all {
		named := func(o *runtimeapi.NetworkInterfaceUsage) bool { return o.GetName() == i.GetName() }
		if i.GetName() == "" || slices.IndexFunc(all, named) < n { // the default one may be in the list, too
			continue
		}
		labels := of.labels(fmt.Sprintf(",interface=%q", i.GetName()))
		for _, m := range []struct {
			name, help string
			v          *runtimeapi.UInt64Value
		}{
			{"receive_bytes_total", "bytes received", i.GetRxBytes()},
			{"receive_errors_total", "errors encountered while receiving", i.GetRxErrors()},
			{"transmit_bytes_total", "bytes transmitted", i.GetTxBytes()},
			{"transmit_errors_total", "errors encountered while transmitting", i.GetTxErrors()},
		} {
			c.measure("container_network_"+m.name, "counter", "Cumulative count of "+m.help, labels, value(m.v), 1, at)
		}
	}
}

// runtimeMetrics adds the metrics of the runtime that statistics do not have.
func (s *Source) runtimeMetrics(ctx context.Context, out *scrape) error {
	described, err := s.Runtime.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	if grpcstatus.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list metric descriptors: %w", err)
	}
	descriptors := map[string]*runtimeapi.MetricDescriptor{}
	for _, d := range described.GetDescriptors() {
		descriptors[d.GetName()] = d
	}
	list, err := s.Runtime.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		return fmt.Errorf("list pod metrics: %w", err)
	}
	for _, pod := range list.GetPodMetrics() {
		out.fromRuntime(descriptors, out.boxes[pod.GetPodSandboxId()], pod.GetMetrics())
		for _, c := range pod.GetContainerMetrics() {
			out.fromRuntime(descriptors, out.containers[c.GetContainerId()], c.GetMetrics())
		}
	}
	return nil
}

// ownLabels are those that owner has.
var ownLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

func (c *scrape) fromRuntime(
	descriptors map[string]*runtimeapi.MetricDescriptor, of owner, metrics []*runtimeapi.Metric,
) {
	if of.id == "" {
		return
	}
	for _, m := range metrics {
		d := descriptors[m.GetName()]
		if d == nil || len(d.GetLabelKeys()) != len(m.GetLabelValues()) {
			continue
		}
		kind := "gauge"
		if m.GetMetricType() == runtimeapi.MetricType_COUNTER {
			kind = "counter"
		}
		f := c.family(m.GetName(), kind, d.GetHelp())
		if f.measured {
			continue
		}
		var more strings.Builder
		for i, key := range d.GetLabelKeys() {
			if !slices.Contains(ownLabels, key) {
				fmt.Fprintf(&more, ",%s=%q", key, m.GetLabelValues()[i])
			}
		}
		value := float64(m.GetValue().GetValue())
		f.add(sample(m.GetName(), of.labels(more.String()), value, stamp(m.GetTimestamp()).Time))
	}
}

// machine adds the machine and the root of its cgroups.
func (s *Source) machine(_ context.Context, out *scrape) error {
	out.family("machine_cpu_cores", "gauge", "Number of logical CPU cores.").
		add(sample("machine_cpu_cores", "", float64(runtime.NumCPU()), time.Time{}))
	n, err := s.usage(time.Now())
	if err != nil {
		return err
	}
	root := owner{id: "/"}
	out.measure(cpuName, "counter", cpuHelp, root.labels(`,cpu="total"`), n.CPU.UsageCoreNanoSeconds, perSecond,
		n.CPU.Time.Time)
	out.measure(memoryName, "gauge", memoryHelp, root.labels(""), n.Memory.WorkingSetBytes, 1, n.Memory.Time.Time)
	out.measure("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.", "",
		new(*n.Memory.WorkingSetBytes+*n.Memory.AvailableBytes), 1, time.Time{})
	return nil
}
