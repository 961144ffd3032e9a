// SPDX-License-Identifier: Apache-2.0

// Package meter counts what the cluster's DNS server does, by the names that CoreDNS' dashboards know. The other
// packages of dns call it; cluster shows it at /metrics. There is one set for the process, and it never does anything
// but count.
package meter

import (
	"strconv"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

const server = "dns://:53" // what CoreDNS calls a server of this kind

var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "coredns_dns_requests_total",
		Help:        "Counter of DNS requests made per zone, protocol and family.",
		ConstLabels: prometheus.Labels{"server": server, "view": ""},
	}, []string{"zone", "proto", "family", "type"})
	responses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "coredns_dns_responses_total",
		Help:        "Counter of response status codes.",
		ConstLabels: prometheus.Labels{"server": server, "view": "", "plugin": "kubernetes"},
	}, []string{"zone", "rcode"})
	duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "coredns_dns_request_duration_seconds",
		Help:        "Histogram of the time (in seconds) each request took per zone.",
		ConstLabels: prometheus.Labels{"server": server, "view": ""},
		Buckets:     []float64{0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1, 5},
	}, []string{"zone"})
	hits = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "coredns_cache_hits_total",
		Help:        "The count of cache hits.",
		ConstLabels: prometheus.Labels{"server": server, "view": "", "zones": "."},
	}, []string{"type"})
	misses = prometheus.NewCounter(prometheus.CounterOpts{
		Name:        "coredns_cache_misses_total",
		Help:        "The count of cache misses.",
		ConstLabels: prometheus.Labels{"server": server, "view": "", "zones": "."},
	})
	forwarded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coredns_forward_requests_total",
		Help: "Counter of requests made per upstream.",
	}, []string{"to"})
	failed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coredns_forward_failures_total",
		Help: "Counter of requests to an upstream that it did not answer.",
	}, []string{"to"})
	dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keelson_dns_dropped_total",
		Help: "Counter of requests that got no answer, by why: source (no address of the cluster), rate, malformed, " +
			"busy.",
	}, []string{"reason"})
	// by what is counted all the time, found without a search.
	took = map[string]prometheus.Observer{
		Cluster: duration.WithLabelValues(Cluster),
		Other:   duration.WithLabelValues(Other),
	}
	cacheHit   = hits.WithLabelValues("success")
	cacheNoHit = hits.WithLabelValues("denial")
)

// Cluster and Other are the zones of which the counts speak: names of the cluster, and those of the rest of the world.
const (
	Cluster = "cluster"
	Other   = "."
)

// Collectors are all the counts.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{requests, responses, duration, hits, misses, forwarded, failed, dropped}
}

// Served counts an answer.
func Served(zone string, tcp, v6 bool, qtype uint16, rcode int, since time.Time) {
	proto := "udp"
	family := "1"
	if tcp {
		proto = "tcp"
	}
	if v6 {
		family = "2"
	}
	requests.WithLabelValues(zone, proto, family, kind(qtype)).Inc()
	responses.WithLabelValues(zone, code(rcode)).Inc()
	took[zone].Observe(time.Since(since).Seconds())
}

// kind names a type of records; those that nobody asks for have one name together.
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
func Hit(rcode int) {
	if rcode == dns.RcodeSuccess {
		cacheHit.Inc()
		return
	}
	cacheNoHit.Inc()
}

// Miss is Hit's opposite.
func Miss() { misses.Inc() }

// Forwarded counts a question to an upstream, and whether it was answered.
func Forwarded(to string, answered bool) {
	forwarded.WithLabelValues(to).Inc()
	if !answered {
		failed.WithLabelValues(to).Inc()
	}
}

// Dropped counts a request that gets no answer.
func Dropped(reason string) { dropped.WithLabelValues(reason).Inc() }
