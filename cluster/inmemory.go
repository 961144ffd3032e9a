// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/client"
	"keelson/lib/connlimit"
	"keelson/lib/mark"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/scheduler"
	"keelson/simulate"
	"keelson/store"
)

// InMemoryConfig is what can be chosen about a cluster without files.
type InMemoryConfig struct {
	// Store holds the objects. Who gave it closes it, after Run.
	Store store.Store
	// Listener serves the API over HTTPS beside the in-memory transport; nil: nobody outside the process reaches it. The cluster closes it.
	Listener net.Listener
	API      APIOptions
	// Listeners hear of every mark.
	Listeners []mark.Listener
	Log       *slog.Logger // nil: discarded
}

// InMemory is an API server without files, with the agents that somebody wants beside it: what clustertest makes its clusters of. It
// touches nothing outside itself: no file, no network but its Listener, no setting of the process.
type InMemory struct {
	c      *Cluster
	made   assembled
	config InMemoryConfig
}

// NewInMemory assembles a cluster. It starts nothing.
func NewInMemory(cfg InMemoryConfig) (*InMemory, error) {
	if cfg.Store == nil {
		return nil, errors.New("cluster in memory: no store given")
	}
	if err := cfg.API.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cluster{
		cfg: Config{NodeName: "in-memory", API: cfg.API, PodCIDR: netip.MustParsePrefix("10.244.0.0/24")}, log: cfg.Log, listener: cfg.Listener, listeners: cfg.Listeners,
		shares: connlimit.Shares{API: 1000, Streams: 1000},
	}
	var err error
	if c.keys, err = (&identities{found: map[string]string{}}).open(c.cfg); err != nil {
		return nil, err
	}
	m := &InMemory{c: c, config: cfg}
	if m.made, err = c.assemble(cfg.Store); err != nil {
		return nil, err
	}
	return m, nil
}

// Run is the API server's life.
func (m *InMemory) Run(ctx context.Context, ready func()) error { return m.made.server.Run(ctx, ready) }

// Client acts as a user. system:authenticated is among its groups.
func (m *InMemory) Client(name string, groups ...string) *client.Client {
	return inProcess(m.made.server, user(name, groups...), "clustertest/"+KubernetesVersion)
}

// AdminConfig reaches the Listener as an administrator.
func (m *InMemory) AdminConfig() *rest.Config {
	pair := m.c.keys.adminPair
	return &rest.Config{
		Host: m.c.URL(), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: m.c.keys.ca.CertPEM(), CertData: pair.CertPEM, KeyData: pair.KeyPEM},
	}
}

// AdminKubeconfig is the same as a file's content.
func (m *InMemory) AdminKubeconfig() ([]byte, error) {
	return pki.Kubeconfig("clustertest", m.c.URL(), "", m.c.keys.ca.CertPEM(), m.c.keys.adminPair)
}

// connect makes agents' clients, each as a user.
func (m *InMemory) connect(through func(*client.Client) *client.Client) func(u *auth.User, agent string) *client.Client {
	return func(u *auth.User, agent string) *client.Client {
		cl := inProcess(m.made.server, u, agent)
		if through != nil {
			cl = through(cl)
		}
		return cl
	}
}

// Controllers is the life of a set of controllers. through may put something between them and the server; nil: nothing.
func (m *InMemory) Controllers(o ControllerOptions, through func(*client.Client) *client.Client) run.Func {
	return func(ctx context.Context, ready func()) error {
		cfg := m.c.controllers(m.connect(through), m.made.marks)
		cfg.Options = o
		return runControllers(ctx, cfg, ready)
	}
}

// Scheduler is the life of a scheduler.
func (m *InMemory) Scheduler(through func(*client.Client) *client.Client) run.Func {
	return func(ctx context.Context, ready func()) error {
		cl := m.connect(through)(user("system:kube-scheduler"), "kube-scheduler/"+KubernetesVersion)
		return runScheduler(ctx, scheduler.Config{Client: cl, Marks: m.made.marks, Log: m.c.log.With("room", "scheduler")}, ready)
	}
}

// Nodes plays the kubelets of nodes that run nothing. cfg's client and marks are filled in.
func (m *InMemory) Nodes(cfg simulate.Config, through func(*client.Client) *client.Client) (*simulate.Simulator, error) {
	cfg.Client = m.connect(through)(user("system:serviceaccount:kube-system:simulate-controller"), "keelson-simulate/"+KubernetesVersion)
	cfg.Marks, cfg.Log = m.made.marks, m.c.log.With("room", "simulate")
	return simulate.New(cfg)
}
