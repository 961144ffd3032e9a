// SPDX-License-Identifier: Apache-2.0

// Package dns is the cluster's DNS server. It answers names of the cluster from informers of services, endpoint slices
// and namespaces, and forwards other names to the node's resolvers. cluster runs one server on each node, in the node's
// process or as `keelson dns`; it needs only a client. Its parts: zone holds the names of the cluster, forward queries
// other resolvers, settings reads configuration, serve speaks DNS with clients. publish.go maintains the service
// kube-system/kube-dns and this node's endpoint slice of it. The server never listens on an address that it was not
// given, and answers only pods, nodes and the ranges in Config.Allowed.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/client"
	"keelson/dns/forward"
	"keelson/dns/meter"
	"keelson/dns/serve"
	"keelson/dns/settings"
	"keelson/dns/zone"
	"keelson/event"
	"keelson/lib/run"
)

// Config is what a server works with.
type Config struct {
	Client *client.Client
	// NodeName is the node whose pods ask; its endpoint slice is kept. Empty: this server is of no node, all nodes'
	// pods may ask, and neither the service nor a slice is kept.
	NodeName string
	// Listen is the address to answer at. Where AnyPort is set and its port is taken, another one is used, which the
	// slice then names.
	Listen  netip.AddrPort
	AnyPort bool
	// Second is an address of the other IP family, at which the server answers too, at the same port; may be unset.
	Second netip.Addr
	// ServiceIP is the cluster address of kube-system/kube-dns.
	ServiceIP netip.Addr
	// Domain is the cluster's; empty: cluster.local.
	Domain string
	// File is the configuration's; empty: the ConfigMap kube-system/keelson-dns holds it.
	File string
	// ResolvConf names the node's resolvers; empty: /etc/resolv.conf.
	ResolvConf string
	// Allowed are further client address ranges.
	Allowed []netip.Prefix
	// Pod reports whether an address belongs to a pod of this node, for nodes without pod CIDRs; nil: the pod CIDRs
	// decide.
	Pod func(netip.Addr) bool
	// Listening is called with the address once the server answers there; may be nil.
	Listening func(netip.AddrPort)
	// Meter counts what the server does; nil: the counts are not published.
	Meter *meter.Meter
	Marks *event.Recorder
	Log   *slog.Logger
}

// TTL of the cluster's records in seconds: how long a client may use an answer after a change.
const TTL = 5

// Server answers DNS queries.
type Server struct {
	cfg      Config
	zone     *zone.Index
	forward  *forward.Forwarder
	handler  *serve.Handler
	sources  *sources
	settings atomic.Pointer[settings.Settings]
	events   *client.Events
	node     atomic.Pointer[types.UID] // this server's, once it is known
	synced   atomic.Bool               // changes after this are marked
}

// New checks cfg. It starts nothing.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Client == nil:
		return nil, errors.New("dns: no client given")
	case !cfg.Listen.IsValid() || cfg.Listen.Addr().IsUnspecified():
		return nil, fmt.Errorf("dns: %s is no address to answer at: only the cluster's pods may ask", cfg.Listen)
	case cfg.Log == nil:
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Domain == "" {
		cfg.Domain = "cluster.local"
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	server := &Server{
		cfg:     cfg,
		zone:    zone.New(cfg.Domain, TTL),
		sources: newSources(cfg.Allowed, cfg.Pod),
		events:  cfg.Client.Events("dns", cfg.NodeName, cfg.Log),
	}
	server.settings.Store(&settings.Settings{})
	server.forward = forward.New(forward.Config{Log: cfg.Log, Looped: server.looped, Meter: cfg.Meter})
	server.handler = serve.New(serve.Config{
		Zone:     server.zone,
		Forward:  server.forward,
		Settings: server.settings.Load,
		Allowed:  server.sources.allowed,
		Meter:    cfg.Meter,
		TTL:      TTL,
	})
	return server, nil
}

// Run answers until ctx ends. It is ready when it answers: all of the cluster's names are known then.
func (s *Server) Run(ctx context.Context, ready func()) error {
	listeners, err := s.listen(ctx, s.cfg.Listen)
	if err != nil {
		return err
	}
	defer listeners.Close()
	sockets := []serve.Listeners{listeners}
	if s.cfg.Second.IsValid() {
		second, err := s.listen(ctx, netip.AddrPortFrom(s.cfg.Second, listeners.Addr().Port()))
		if err != nil {
			return err
		}
		defer second.Close()
		sockets = append(sockets, second)
	}
	var addrs []netip.AddrPort
	for _, l := range sockets {
		addrs = append(addrs, l.Addr())
	}
	publishers := newPublishers(s.cfg, addrs...)
	inform, err := s.informers(publishers)
	if err != nil {
		return err
	}
	background := func(f func(context.Context)) run.Func {
		return func(ctx context.Context, ready func()) error {
			ready()
			f(ctx)
			return nil
		}
	}
	answer := func(ctx context.Context, ready func()) error {
		if s.cfg.Listening != nil {
			s.cfg.Listening(listeners.Addr())
		}
		ready()
		return s.answer(ctx, sockets)
	}
	g := &run.Group{}
	g.Add("events", s.events.Run)
	g.Add("forwarder", background(s.forward.Run))
	g.Add("settings", s.follow)
	g.Add("informers", inform)
	g.Add("server", answer)
	if s.cfg.NodeName != "" {
		g.Add("publisher", background(publishers.run))
	}
	return g.Run(ctx, ready)
}

// answer serves all sockets until ctx ends, or one of them fails.
func (s *Server) answer(ctx context.Context, sockets []serve.Listeners) error {
	work, ctx := errgroup.WithContext(ctx)
	for _, l := range sockets {
		work.Go(func() error { return s.handler.Run(ctx, l) })
	}
	return work.Wait()
}

func (s *Server) listen(ctx context.Context, at netip.AddrPort) (serve.Listeners, error) {
	listeners, err := serve.Listen(ctx, at)
	if s.cfg.AnyPort && errors.Is(err, syscall.EADDRINUSE) {
		listeners, err = serve.Listen(ctx, netip.AddrPortFrom(at.Addr(), 0))
		if err == nil {
			s.cfg.Log.Warn("another program answers for names at all addresses of the machine; pods reach this "+
				"server at another port, through the service kube-dns",
				"taken", at, "port", listeners.Addr().Port())
		}
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return listeners, fmt.Errorf("another program answers for names at %s: stop it, choose another address with "+
			"--dns-listen, or do without with --dns=none: %w", at, err)
	}
	return listeners, err
}

// looped records an event about an upstream server that sends queries back to this one.
func (s *Server) looped(to netip.AddrPort) {
	s.recordEvent(corev1.EventTypeWarning, "DNSLoop",
		fmt.Sprintf("the name server %s leads back to the cluster's own and is not asked any more", to))
}
