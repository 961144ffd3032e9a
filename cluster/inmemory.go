// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"keelson/api/gates"
	"keelson/apiserver/options"
	"keelson/auth"
	"keelson/client"
	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/listen"
	"keelson/cluster/version"
	"keelson/controllers"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/lib/connlimit"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/simulate"
	"keelson/store"
	"keelson/store/embed"
)

// InMemoryConfig configures a cluster without files.
type InMemoryConfig struct {
	// Store holds the objects. The caller closes it after Run.
	Store store.Store
	// Listener serves the API over HTTPS in addition to the in-memory transport; nil: only this process reaches the
	// API. The cluster closes it.
	Listener net.Listener
	API      options.Options
	Services options.Services
	// Gates are the enabled feature gates; Listen names the addresses that the API is reached by.
	Gates  gates.On
	Listen listen.Options
	// Listeners receive every event.
	Listeners []event.Listener
	Log       *slog.Logger // nil: discarded
}

// InMemory is an API server without files, with optional agents; package clustertest builds its clusters from it. It
// has no side effects: no file, no network except its Listener, no process-wide setting.
type InMemory struct {
	c    *Cluster
	made atomic.Pointer[assembled]
}

// NewInMemory assembles a cluster. It starts nothing.
func NewInMemory(cfg InMemoryConfig) (*InMemory, error) {
	if err := errors.Join(cfg.API.Validate(), cfg.Services.Validate(), cfg.Listen.Validate()); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	settings := Config{
		NodeName: "in-memory",
		Options: Options{
			API:      cfg.API,
			Services: cfg.Services,
			Gates:    cfg.Gates,
			Listen:   cfg.Listen,
		},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")},
	}
	uses, err := settings.keys()
	if err != nil {
		return nil, err
	}
	keys, err := credentials.InMemory(uses)
	if err != nil {
		return nil, err
	}
	inMemory := &InMemory{c: &Cluster{
		cfg:       settings,
		log:       cfg.Log,
		listener:  cfg.Listener,
		listeners: cfg.Listeners,
		shares:    connlimit.Shares{API: 1000, Streams: 1000},
		keys:      keys,
	}}
	return inMemory, inMemory.Reopen(cfg.Store)
}

// Reopen assembles a new API server over st, after the previous one has ended. Existing clients then use the new one.
// It is not possible with a Listener.
func (m *InMemory) Reopen(st store.Store) error {
	if st == nil {
		return errors.New("cluster in memory: no store given")
	}
	made, err := m.c.assemble(st)
	if err != nil {
		return err
	}
	m.made.Store(&made)
	return nil
}

// Run runs the API server that was assembled last.
func (m *InMemory) Run(ctx context.Context, ready func()) error {
	return m.made.Load().api.Run(ctx, ready)
}

// ForUser returns the HTTP handler and the list/watch source of the API server for a user.
func (m *InMemory) ForUser(u *auth.User) (http.Handler, client.Source) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.made.Load().api.As(u).ServeHTTP(w, r)
	}), currentSource{m, u}
}

// currentSource is the source of the API server that was assembled last.
type currentSource struct {
	m *InMemory
	u *auth.User
}

// List implements client.Source.
func (l currentSource) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) ([]runtime.Object, string, error) {
	return l.m.made.Load().api.Source(l.u).List(ctx, gvr, namespace, opts)
}

// Watch implements client.Source.
func (l currentSource) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	return l.m.made.Load().api.Source(l.u).Watch(ctx, gvr, namespace, opts)
}

// AdminConfig is an administrator's client configuration for the Listener.
func (m *InMemory) AdminConfig() *rest.Config {
	pair := m.c.keys.Admin.Pair()
	return &rest.Config{
		Host: m.c.URL(),
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   m.c.keys.CA.CertPEM(),
			CertData: pair.CertPEM,
			KeyData:  pair.KeyPEM,
		},
	}
}

// AdminKubeconfig is the same as the content of a kubeconfig file.
func (m *InMemory) AdminKubeconfig() ([]byte, error) {
	return pki.Kubeconfig("clustertest", m.c.URL(), "", m.c.keys.CA.CertPEM(), m.c.keys.Admin.Pair())
}

// OpenStore opens or creates a durable store below a directory, for a cluster that has no other files.
func OpenStore(dir string) (store.Store, error) { return embed.Open(embed.Options{Dir: dir}) }

// Direct connects an agent to the server without anything between them. It is a Connect.
func (m *InMemory) Direct(u *auth.User, agent string) *client.Client {
	h, s := m.ForUser(u)
	cl, err := client.InProcess(h, s, agent)
	if err != nil {
		panic(err) // cannot happen: the arguments are constant
	}
	return cl
}

// Admin is an administrator's client.
func (m *InMemory) Admin(agent string) *client.Client {
	return m.Direct(&auth.User{Name: "admin", Groups: []string{auth.Masters, auth.Authenticated}, How: auth.InProcess},
		agent)
}

// Connect creates the client of an agent: its user, and its name for the server's log.
type Connect func(u *auth.User, agent string) *client.Client

// ControllerOptions select and configure the controllers.
type ControllerOptions = controllers.Options

// Controllers returns the part that runs controllers.
func (m *InMemory) Controllers(o controllers.Options, connect Connect) run.Func {
	return func(ctx context.Context, ready func()) error {
		cfg := m.process(connect).controllerConfig()
		cfg.Options = o
		return runControllers(ctx, cfg, ready)
	}
}

// process is where agents of the server that was assembled last are made.
func (m *InMemory) process(connect Connect) *process {
	made := m.made.Load()
	return &process{
		shared: shared{
			cfg:     m.c.cfg,
			marks:   made.marks,
			log:     m.c.log,
			connect: connect,
			signers: m.c.signers(),
			metrics: made.metrics,
		},
		election: agents.Election{Off: true},
		rejected: &m.c.rejected,
	}
}

// Scheduler returns the part that runs a scheduler.
func (m *InMemory) Scheduler(connect Connect) run.Func {
	return func(ctx context.Context, ready func()) error {
		f, err := m.process(connect).scheduler()
		if err != nil {
			return err
		}
		return f(ctx, ready)
	}
}

// Nodes returns a simulator of nodes. It sets the client and the marks of cfg.
func (m *InMemory) Nodes(cfg simulate.Config, connect Connect) (*simulate.Simulator, error) {
	cfg.Client = connect(user("system:serviceaccount:kube-system:simulate-controller"),
		"keelson-simulate/"+version.Kubernetes)
	cfg.Marks = m.made.Load().marks
	cfg.Log = m.c.log.With(eventlog.Key, eventlog.FakeNodes)
	return simulate.New(cfg)
}
