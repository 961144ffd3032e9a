// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"keelson/api/metrics"
)

// minContainerAge is the minimum age of a container for a rate since its start.
const minContainerAge = 2 * time.Second

// reading is the CPU rate over window, which ended at at, and the memory at that time.
type reading struct {
	usage  corev1.ResourceList
	at     time.Time
	window time.Duration
}

// nodeUsage is the usage of a node and of its pods' containers.
type nodeUsage struct {
	node *reading // nil: unknown
	pods map[podKey]*podReading
}

type podKey struct{ namespace, name string }

type podReading struct {
	containers []metricsv1.ContainerMetrics // by name
	at         time.Time
	window     time.Duration
}

// rate is the usage between two points; was may be nil. nil: it cannot be computed.
func rate(was, now *point) *reading {
	if !now.complete() || now.memory == 0 {
		return nil
	}
	from := now.start
	used := now.cpu // since the start
	if was != nil && was.has&hasCPU != 0 && !was.at.Before(now.start) && was.cpu <= now.cpu {
		from = was.at
		used = now.cpu - was.cpu
	} else if now.start.IsZero() || now.at.Sub(now.start) < minContainerAge || now.at.Sub(now.start) > maxSampleAge {
		return nil
	}
	window := now.at.Sub(from)
	if window <= 0 {
		return nil
	}
	return &reading{
		usage:  metrics.Usage(uint64(used/window.Seconds()*1e9), uint64(now.memory)),
		at:     now.at,
		window: window,
	}
}

// compute converts two samples to usage. A pod has a result only if all of its containers have one.
func compute(was, now *sample) nodeUsage {
	out := nodeUsage{pods: map[podKey]*podReading{}}
	if was == nil {
		was = &sample{}
	}
	out.node = rate(&was.node, &now.node)
	incomplete := map[podKey]bool{}
	for _, ctr := range slices.SortedFunc(maps.Keys(now.containers), func(a, b container) int {
		return strings.Compare(a.name, b.name)
	}) {
		key := podKey{ctr.namespace, ctr.pod}
		reading := rate(was.containers[ctr], now.containers[ctr])
		if reading == nil {
			incomplete[key] = true
			continue
		}
		p := out.pods[key]
		if p == nil {
			p = &podReading{at: reading.at, window: reading.window}
			out.pods[key] = p
		}
		if reading.at.Before(p.at) {
			p.at = reading.at
			p.window = reading.window
		}
		p.containers = append(p.containers, metricsv1.ContainerMetrics{Name: ctr.name, Usage: reading.usage})
	}
	for key := range incomplete {
		delete(out.pods, key)
	}
	return out
}
