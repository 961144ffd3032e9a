// SPDX-License-Identifier: Apache-2.0

// Package meter counts what the cluster's DNS server does, by the names that CoreDNS' dashboards know. The other
// packages of dns call it; cluster shows it at /metrics. It never does anything but count.
package meter

import (
	"strconv"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

const server = "dns://:53" // what CoreDNS calls a server of this kind

// Cluster and Other are the zones of which the counts speak: names of the cluster, and those of the rest of the world.
const (
	Cluster = "cluster"
	Other   = "."
)

// Meter counts what a server does. New makes it. It is safe for concurrent use.
type Meter struct {
	requests, responses *prometheus.CounterVec
	duration            *prometheus.HistogramVec
	hits                *prometheus.CounterVec
	misses              prometheus.Counter
	forwarded, failed   *prometheus.CounterVec
	dropped             *prometheus.CounterVec
	// by what is counted all the time, found without a search
	took                 map[string]prometheus.Observer
	cacheHit, cacheNoHit prometheus.Counter
}

// New returns the counts of one server.
func New() *Meter {
	m := &Meter{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "coredns_dns_requests_total",
			Help:        "Counter of DNS requests made per zone, protocol and family.",
			ConstLabels: prometheus.Labels{"server": server, "view": ""},
		}, []string{"zone", "proto", "family", "type"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "coredns_dns_responses_total",
			Help:        "Counter of response status codes.",
			ConstLabels: prometheus.Labels{"server": server, "view": "", "plugin": "kubernetes"},
		}, []string{"zone", "rcode"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:        "coredns_dns_request_duration_seconds",
			Help:        "Histogram of the time (in seconds) each request took per zone.",
			ConstLabels: prometheus.Labels{"server": server, "view": ""},
			Buckets:     []float64{0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1, 5},
		}, []string{"zone"}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "coredns_cache_hits_total",
			Help:        "The count of cache hits.",
			ConstLabels: prometheus.Labels{"server": server, "view": "", "zones": "."},
		}, []string{"type"}),
		misses: prometheus.NewCounter(prometheus.CounterOpts{
			Name:        "coredns_cache_misses_total",
			Help:        "The count of cache misses.",
			ConstLabels: prometheus.Labels{"server": server, "view": "", "zones": "."},
		}),
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coredns_forward_requests_total",
			Help: "Counter of requests made per upstream.",
		}, []string{"to"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "coredns_forward_failures_total",
			Help: "Counter of requests to an upstream that it did not answer.",
		}, []string{"to"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_dns_dropped_total",
			Help: "Counter of requests that got no answer, by why: source (no address of the cluster), rate, " +
				"malformed, busy.",
		}, []string{"reason"}),
	}
	m.took = map[string]prometheus.Observer{
		Cluster: m.duration.WithLabelValues(Cluster),
		Other:   m.duration.WithLabelValues(Other),
	}
	m.cacheHit = m.hits.WithLabelValues("success")
	m.cacheNoHit = m.hits.WithLabelValues("denial")
	return m
}

// Collectors are all the counts, for a registry.
func (m *Meter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.requests, m.responses, m.duration, m.hits, m.misses, m.forwarded, m.failed, m.dropped,
	}
}

// Served counts an answer.
func (m *Meter) Served(zone string, tcp, v6 bool, qtype uint16, rcode int, since time.Time) {
	proto := "udp"
	family := "1"
	if tcp {
		proto = "tcp"
	}
	if v6 {
		family = "2"
	}
	m.requests.WithLabelValues(zone, proto, family, kind(qtype)).Inc()
	m.responses.WithLabelValues(zone, code(rcode)).Inc()
	m.took[zone].Observe(time.Since(since).Seconds())
}

// kind names a type of records; those that no one asks for have one name together.
func kind(t uint16) string {
	switch t {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeHTTPS, dns.TypeMX, dns.TypeNAPTR, dns.TypeNS, dns.TypePTR,
		dns.TypeSOA, dns.TypeSRV, dns.TypeSVCB, dns.TypeTXT:
		return dns.TypeToString[t]
	}
	return "other"
}

func code(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return strconv.Itoa(rcode)
}

// Hit counts an answer from the cache, Miss a question that it did not know.
func (m *Meter) Hit(rcode int) {
	if rcode == dns.RcodeSuccess {
		m.cacheHit.Inc()
		return
	}
	m.cacheNoHit.Inc()
}

// Miss is Hit's opposite.
func (m *Meter) Miss() { m.misses.Inc() }

// Forwarded counts a question to an upstream, and whether it was answered.
func (m *Meter) Forwarded(to string, answered bool) {
	m.forwarded.WithLabelValues(to).Inc()
	if !answered {
		m.failed.WithLabelValues(to).Inc()
	}
}

// Dropped counts a request that gets no answer.
func (m *Meter) Dropped(reason string) { m.dropped.WithLabelValues(reason).Inc() }
