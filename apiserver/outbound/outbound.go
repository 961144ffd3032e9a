// SPDX-License-Identifier: Apache-2.0

// Package outbound makes the API server's connections to others: kubelets, pods, services, webhooks, token issuers and
// aggregated servers. It decides which addresses are allowed, sets time-outs and counts requests. handlers, aggregate,
// crd, admission, and authentication, authorization and audit webhooks use it. It knows no Kubernetes objects and adds
// no credentials of its own.
//
// Invariants:
//  1. An address is checked at the time of the connection, after name resolution: changing DNS answers do not bypass
//     the check.
//  2. Addresses that clients, nodes or tenants control are Backend or Kubelet. Configured is only for those of a
//     cluster administrator.
package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/lib/dial"
)

// Target is the kind of a connection's destination.
type Target string

// The targets, by who controls their address.
const (
	// Backend is a pod, an endpoint of a Service, or a port of a node: writers of Pods, Services, EndpointSlices or DNS
	// control it.
	Backend Target = "backend"
	// Kubelet is a node's kubelet: the node controls it.
	Kubelet Target = "kubelet"
	// Configured is a URL of a cluster administrator, as in a webhook configuration. As in Kubernetes any address is
	// allowed, even loopback.
	Configured Target = "configured"
)

// Config holds the addresses of the server itself.
type Config struct {
	// Listeners are this process's listen addresses. An unspecified address means all of the machine's.
	Listeners []netip.AddrPort
	// OwnAddresses are further addresses of this server, on every port: the cluster IP of the Service "kubernetes".
	OwnAddresses []netip.Addr
	// AllowedPrefixes are ranges that are always allowed, for tests with backends on the loopback interface.
	AllowedPrefixes []netip.Prefix
	// Resolver resolves names; nil: the machine's.
	Resolver *net.Resolver
	// MachineAddresses lists the machine's addresses; nil: those of its interfaces.
	MachineAddresses func() ([]netip.Addr, error)
}

// Time-outs of connections, after lib/dial's for the attempt. The caller limits the duration of a response.
const (
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second
	maxIdleConns     = 16
)

// maxHeader limits the header of a response. A header of many short lines takes twenty times its size in memory, and
// the default of net/http is 10 MiB.
const maxHeader = 64 << 10

// Egress makes connections. It is safe for concurrent use.
type Egress struct {
	cfg      Config
	refused  *prometheus.CounterVec
	dials    *prometheus.HistogramVec
	requests *prometheus.HistogramVec
}

// New returns an Egress.
func New(cfg Config) *Egress {
	egress := &Egress{
		cfg: cfg,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keelson_apiserver_outbound_refused_total",
			Help: "Connections that the server refused to open, by target.",
		}, []string{"target"}),
		dials: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "keelson_apiserver_outbound_dial_duration_seconds",
			Help:    "Duration of connection attempts to other servers, by target and result.",
			Buckets: latencyBuckets,
		}, []string{"target", "result"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "keelson_apiserver_outbound_request_duration_seconds",
			Help:    "Time until the response header of outgoing requests, by destination and status code.",
			Buckets: latencyBuckets,
		}, []string{"to", "code"}),
	}
	if egress.cfg.MachineAddresses == nil {
		egress.cfg.MachineAddresses = dial.MachineAddresses
	}
	return egress
}

// latencyBuckets are the histogram buckets, from a local connection to the longest time-out.
var latencyBuckets = []float64{0.0005, 0.002, 0.01, 0.05, 0.2, 1, 5, 30}

// Collectors are the metrics of the connections.
func (e *Egress) Collectors() []prometheus.Collector {
	return []prometheus.Collector{e.refused, e.dials, e.requests}
}

// RefusedError is the error for an address that is not allowed.
type RefusedError = dial.RefusedError

// Dial connects to addr (host:port) for a target. For an address that is not allowed the error is or wraps a
// *RefusedError.
func (e *Egress) Dial(ctx context.Context, target Target, network, addr string) (net.Conn, error) {
	begin := time.Now()
	conn, err := dial.Context(ctx, network, addr, e.cfg.Resolver, func(to netip.AddrPort) error {
		return e.Check(target, to)
	})
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		e.refused.WithLabelValues(string(target)).Inc()
		return nil, refused
	}
	result := "connected"
	if err != nil {
		result = "failed"
	}
	e.dials.WithLabelValues(string(target), result).Observe(time.Since(begin).Seconds())
	return conn, err
}

// Dialer is Dial for a target, for clients built elsewhere (webhooks in kubeconfigs, token issuers). A nil *Egress
// knows no address of this server.
func (e *Egress) Dialer(t Target) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if e == nil {
		e = New(Config{})
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return e.Dial(ctx, t, network, addr)
	}
}

// Check reports whether a target may have an address; the error is a *RefusedError.
func (e *Egress) Check(t Target, to netip.AddrPort) error {
	to = dial.Canonical(to)
	ip := to.Addr()
	if t == Configured || slices.ContainsFunc(e.cfg.AllowedPrefixes, func(p netip.Prefix) bool {
		return p.Contains(ip)
	}) {
		return nil
	}
	if why := dial.Special(ip); why != "" {
		return dial.Refuse(to, why)
	}
	own, err := e.isOwnAddress(to)
	if err != nil {
		return err
	}
	if own {
		return dial.Refuse(to, "the API server's own address")
	}
	return nil
}

// isOwnAddress reports whether an address leads to this process.
func (e *Egress) isOwnAddress(to netip.AddrPort) (bool, error) {
	if slices.Contains(e.cfg.OwnAddresses, to.Addr()) {
		return true, nil
	}
	for _, l := range e.cfg.Listeners {
		if l.Port() != to.Port() {
			continue
		}
		if l.Addr().Unmap() == to.Addr() {
			return true, nil
		}
		// A loopback listener counts too: NAT rules may redirect the machine's other addresses to it.
		machine, err := e.cfg.MachineAddresses()
		if err != nil {
			return false, err
		}
		if slices.Contains(machine, to.Addr()) {
			return true, nil
		}
	}
	return false, nil
}

// Options of a transport.
type Options struct {
	Target Target
	// TLS is used unchanged; nil: the default. HTTP2 enables HTTP/2; upgrades need HTTP/1.1.
	TLS   *tls.Config
	HTTP2 bool
	// Resolve returns the address to connect to; nil: the URL's host.
	Resolve func(ctx context.Context) (hostPort string, err error)
}

// Transport returns an HTTP transport whose connections e makes. As in Kubernetes, Configured targets use the proxies
// of the environment, others do not. A nil *Egress knows no address of this server.
func (e *Egress) Transport(options Options) *http.Transport {
	if e == nil {
		e = New(Config{})
	}
	transport := &http.Transport{
		TLSClientConfig:        options.TLS,
		ForceAttemptHTTP2:      options.HTTP2,
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    maxIdleConns,
		MaxResponseHeaderBytes: maxHeader,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if options.Resolve != nil {
				var err error
				if addr, err = options.Resolve(ctx); err != nil {
					return nil, err
				}
			}
			return e.Dial(ctx, options.Target, network, addr)
		},
	}
	if !options.HTTP2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	if options.Target == Configured {
		transport.Proxy = http.ProxyFromEnvironment
	}
	return transport
}
