// SPDX-License-Identifier: Apache-2.0

// Package user has metrics of the process, and what is none.
package user

import (
	"sync"

	prom "github.com/prometheus/client_golang/prometheus"
)

var direct = prom.NewCounter(prom.CounterOpts{Name: "a"})

var once = sync.OnceValue(func() *Metrics { return &Metrics{prom.NewGauge(prom.GaugeOpts{Name: "b"})} })

var set = NewMetrics()

var (
	later    prom.Histogram
	registry *prom.Registry
)

// Metrics belong to who makes them.
type Metrics struct{ gauge prom.Gauge }

// NewMetrics returns a set.
func NewMetrics() *Metrics { return &Metrics{prom.NewGauge(prom.GaugeOpts{Name: "c"})} }

var _ prom.Collector = (*Metrics)(nil)

// Describe implements prom.Collector.
func (*Metrics) Describe(chan<- *prom.Desc) {}

// Collect implements prom.Collector.
func (*Metrics) Collect(chan<- prom.Metric) {}

var desc = prom.NewDesc("d", "A description is no metric.", nil, nil)

func collectors() []any {
	own := prom.NewCounter(prom.CounterOpts{Name: "e"})
	return []any{own, direct, once, set, later, registry, desc}
}
