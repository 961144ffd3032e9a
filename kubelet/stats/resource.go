// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metric is one sample; a nil value is not written.
type metric struct {
	labels string
	value  *uint64
	at     metav1.Time
}

// family is a metric of /metrics/resource. Values are multiplied by scale.
type family struct {
	name, kind, level, help string
	scale                   float64
	// timeless: the value itself is a time, and has none of its own.
	timeless bool
	node     func(*node) metric
	pod      func(*pod) metric
	of       func(*container) metric
}

const perSecond = 1e-9 // of nanoseconds

// families are the metrics of Kubernetes' kubelet, with its names and help texts.
var families = []family{
	{
		name:  "container_cpu_usage_seconds_total",
		kind:  "counter",
		level: "STABLE",
		scale: perSecond,
		help:  "Cumulative cpu time consumed by the container in core-seconds",
		of:    func(c *container) metric { return cpuTime(c.CPU) },
	},
	{
		name:  "container_memory_working_set_bytes",
		kind:  "gauge",
		level: "STABLE",
		scale: 1,
		help:  "Current working set of the container in bytes",
		of:    func(c *container) metric { return workingSet(c.Memory) },
	},
	{
		name:     "container_start_time_seconds",
		kind:     "gauge",
		level:    "STABLE",
		scale:    perSecond,
		timeless: true,
		help:     "Start time of the container since unix epoch in seconds",
		of: func(c *container) metric {
			if c.Start.IsZero() {
				return metric{}
			}
			return metric{value: unsigned(c.Start.UnixNano())}
		},
	},
	{
		name:  "container_swap_usage_bytes",
		kind:  "gauge",
		level: "ALPHA",
		scale: 1,
		help:  "Current amount of the container swap usage in bytes. Reported only on non-windows systems",
		of:    func(c *container) metric { return swapUsage(c.Swap) },
	},
	{
		name:  "node_cpu_usage_seconds_total",
		kind:  "counter",
		level: "STABLE",
		scale: perSecond,
		help:  "Cumulative cpu time consumed by the node in core-seconds",
		node:  func(n *node) metric { return cpuTime(n.CPU) },
	},
	{
		name:  "node_memory_working_set_bytes",
		kind:  "gauge",
		level: "STABLE",
		scale: 1,
		help:  "Current working set of the node in bytes",
		node:  func(n *node) metric { return workingSet(n.Memory) },
	},
	{
		name:  "node_swap_usage_bytes",
		kind:  "gauge",
		level: "ALPHA",
		scale: 1,
		help:  "Current swap usage of the node in bytes. Reported only on non-windows systems",
		node:  func(n *node) metric { return swapUsage(n.Swap) },
	},
	{
		name:  "pod_cpu_usage_seconds_total",
		kind:  "counter",
		level: "STABLE",
		scale: perSecond,
		help:  "Cumulative cpu time consumed by the pod in core-seconds",
		pod:   func(p *pod) metric { return cpuTime(p.CPU) },
	},
	{
		name:  "pod_memory_working_set_bytes",
		kind:  "gauge",
		level: "STABLE",
		scale: 1,
		help:  "Current working set of the pod in bytes",
		pod:   func(p *pod) metric { return workingSet(p.Memory) },
	},
}

func cpuTime(c *cpu) metric {
	if c == nil {
		return metric{}
	}
	return metric{value: c.UsageCoreNanoSeconds, at: c.Time}
}

func workingSet(m *memory) metric {
	if m == nil {
		return metric{}
	}
	return metric{value: m.WorkingSetBytes, at: m.Time}
}

func swapUsage(s *swap) metric {
	if s == nil {
		return metric{}
	}
	return metric{value: s.UsageBytes, at: s.Time}
}

// Metrics serves /metrics/resource in Prometheus' text format. If something cannot be measured, it is missing and
// resource_scrape_error is 1.
func (s *Source) Metrics(w http.ResponseWriter, r *http.Request) {
	n, pods, failed := s.resources(r.Context())
	var b strings.Builder
	for i := range families {
		families[i].write(&b, &n, pods)
	}
	_, _ = fmt.Fprintf(&b, "# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container "+
		"metrics, 0 otherwise\n"+
		"# TYPE resource_scrape_error gauge\nresource_scrape_error %d\n", failed) // a builder takes everything
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, b.String()) // the client may have gone
}

// resources measures only cpu and memory.
func (s *Source) resources(ctx context.Context) (n node, pods []pod, failed int) {
	pods, err := s.pods(ctx)
	if err != nil {
		failed = 1
	}
	if n, err = s.usage(time.Now()); err != nil {
		failed = 1
	}
	return n, pods, failed
}

func (f *family) write(w io.Writer, n *node, pods []pod) {
	var out []metric
	if f.node != nil {
		out = append(out, f.node(n))
	}
	for i := range pods {
		p := &pods[i]
		names := fmt.Sprintf("namespace=%q,pod=%q", p.Ref.Namespace, p.Ref.Name)
		if f.pod != nil {
			m := f.pod(p)
			m.labels = "{" + names + "}"
			out = append(out, m)
		}
		for j := range p.Containers {
			if f.of != nil {
				m := f.of(&p.Containers[j])
				m.labels = fmt.Sprintf("{container=%q,%s}", p.Containers[j].Name, names)
				out = append(out, m)
			}
		}
	}
	head := fmt.Sprintf("# HELP %s [%s] %s\n# TYPE %s %s\n", f.name, f.level, f.help, f.name, f.kind)
	for _, m := range out {
		if m.value == nil {
			continue
		}
		at := ""
		if !f.timeless {
			at = fmt.Sprintf(" %d", m.at.UnixMilli())
		}
		// a builder takes everything
		_, _ = fmt.Fprintf(w, "%s%s%s %v%s\n", head, f.name, m.labels, float64(*m.value)*f.scale, at)
		head = ""
	}
}
