// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/configreload"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client"
	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/cluster/nodehost"
	"keelson/cluster/noderoles"
	"keelson/cluster/renewal"
	"keelson/cluster/scheduling"
	"keelson/cluster/storage"
	"keelson/cluster/version"
	"keelson/controllers"
	"keelson/dns/meter"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/lib/run"
	"keelson/proxy"
	"keelson/scheduler/loop"
	"keelson/simulate"
	"keelson/store"
)

// shared is what every role of a process needs.
type shared struct {
	cfg   Config
	dir   datadir.Dir
	marks *event.Recorder
	log   *slog.Logger
	// connect creates the client of a user; the second argument is its name in the server's log.
	connect Connect
	signers credentials.Signers
	metrics roleMetrics
}

// process has what the roles of one process are made of; its methods make them.
type process struct {
	shared
	// election configures leader election. With waitAgain an instance that loses the lease waits for another term;
	// without, its process ends.
	election  agents.Election
	waitAgain bool
	// rejected is what the API server in this process reports configuration files that are not in use; nil: it runs in
	// another process.
	rejected *configreload.Rejected
	server   *ownServer      // nil if the API server runs in another process
	node     *noderoles.Node // nil in a process without roles of a node
}

// roleMetrics are the metrics of roles, of one cluster. Those of a node's roles are nil in a process without an API
// server: it has no /metrics.
type roleMetrics struct {
	claims      *client.Claims // of controllers and scheduler
	controllers *controllers.Metrics
	scheduler   *scheduling.Metrics
	proxy       *proxy.Metrics
	dns         *meter.Meter
	backups     *maintenance.BackupMetrics
}

func newRoleMetrics() roleMetrics {
	metrics := newAgentMetrics()
	metrics.proxy = proxy.NewMetrics()
	metrics.dns = meter.New()
	metrics.backups = maintenance.NewBackupMetrics()
	return metrics
}

// newAgentMetrics are those of controllers or scheduler in a process of its own.
func newAgentMetrics() roleMetrics {
	claims := client.NewClaims()
	return roleMetrics{
		claims:      claims,
		controllers: controllers.NewMetrics(claims),
		scheduler:   scheduling.NewMetrics(),
	}
}

func (m roleMetrics) collectors() []prometheus.Collector {
	return slices.Concat(m.claims.Collectors(), m.controllers.Collectors(), m.scheduler.Collectors(),
		m.proxy.Collectors(), m.dns.Collectors(), m.backups.Collectors())
}

// ownServer is the API server of this process.
type ownServer struct {
	assembled
	c *Cluster
	// raw is the store as it is on disk, in which the server may encrypt what it writes.
	raw store.Store
}

// heartbeat is the lease renewal interval of a node whose process is the whole control plane: when it ends, no one is
// left to notice (docs/decisions/0004). Every other kubelet has Kubernetes' default.
const heartbeat = 15 * time.Minute

// newNode makes the node of a process. has reports whether a role runs in it, server whether the API server does.
func (s shared) newNode(of noderoles.Process, server bool, has func(role string) bool) (*noderoles.Node, error) {
	services := s.cfg.keptServices
	if len(services) == 0 {
		services, _ = s.cfg.Services.Ranges() // checked by Validate
	}
	var runtime *nodehost.RuntimeConfig
	if has(noderoles.RuntimeName) {
		builtin := s.cfg.containerRuntime(s.dir)
		runtime = &builtin
	}
	return noderoles.New(noderoles.Config{
		NodeName: s.cfg.NodeName,
		Dir:      s.dir,
		Here: noderoles.Here{
			Server:   server,
			Runtime:  runtime,
			Proxy:    has(noderoles.ProxyName),
			Policies: has(noderoles.PolicyName),
		},
		Process: of,
		Addresses: noderoles.Addresses{
			PodCIDRs:     s.cfg.PodCIDRs,
			NodeIPs:      s.cfg.nodeIPs(),
			Services:     services,
			ClusterCIDRs: s.cfg.clusterRanges(server),
		},
		Options: noderoles.Options{
			Endpoint:  s.cfg.Runtime.Endpoint,
			Kubelet:   s.cfg.Node,
			CNI:       s.cfg.CNI,
			PodRoutes: s.cfg.PodRoutes,
			Proxy:     s.cfg.Proxy,
			DNS:       s.cfg.DNS,
			Gates:     s.cfg.Gates,
			Flags:     s.cfg.API.Flags,
		},
		RootCA:       s.signers.RootCA,
		ProxyMetrics: s.metrics.proxy,
		DNSMetrics:   s.metrics.dns,
		Client:       func(role string) *client.Client { return s.client(roleNamed(role).roleIdentity) },
		Marks:        s.marks,
		Log:          s.log,
	})
}

// client creates the client of a role's user.
func (s shared) client(r roleIdentity) *client.Client {
	return s.connect(r.user(s.cfg), r.agent+"/"+version.Kubernetes)
}

// logOf returns the log of a component.
func (s shared) logOf(component string) *slog.Logger { return s.log.With(eventlog.Key, component) }

// group makes the roles that want selects, in waves that start one after the other. started is called for each role
// that is ready; may be nil. The parts first start with the first wave, which is named begin in errors; the others are
// named then.
func (p *process) group(
	want func(*role) bool, started func(string, time.Duration), first []run.Part, begin, then string,
) (*run.Group, error) {
	group := &run.Group{}
	name := begin
	parts := first
	for _, wave := range waves(table(), func(r *role) bool { return want(r) && r.on(p.cfg) }) {
		for _, r := range wave {
			f, err := r.make(p)
			if err != nil {
				return nil, err
			}
			if f != nil {
				parts = append(parts, run.Part{Name: r.name, Run: f})
			}
		}
		if len(parts) > 0 {
			group.Add(name, run.Together(started, parts...))
		}
		name = then
		parts = nil
	}
	return group, nil
}

func (p *process) apiServer() (run.Func, error) { return p.server.api.Run, nil }

func (p *process) configuration() (run.Func, error) { return p.server.files.Part(), nil }

// certificates renews the certificates of this process.
func (p *process) certificates() (run.Func, error) {
	c := p.server.c
	agent := "keelson-certificates/" + version.Kubernetes
	signer := authn.ServiceAccountUser(metav1.NamespaceSystem, "bootstrap-signer", "", auth.InProcess)
	return renewal.Config{
		Certificates:     c.certificates(),
		Dir:              c.dir,
		URL:              c.URL(),
		MergedKubeconfig: c.cfg.MergedKubeconfig,
		Server:           p.server.api,
		Store:            p.server.raw,
		Tokens:           p.server.tokens,
		Signer:           p.connect(signer, agent),
		Events:           p.connect(user("system:kube-controller-manager"), agent),
		Log:              p.logOf(eventlog.Certificates),
	}.Run, nil
}

// backups makes backups of the store on a schedule, and an event about the namespace kube-system of each that failed.
func (p *process) backups() (run.Func, error) {
	agent := "keelson-backups/" + version.Kubernetes
	log := p.logOf(eventlog.Store)
	events := p.connect(user("system:kube-controller-manager"), agent).Events("keelson-backups", "", log)
	about := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	return run.Together(nil, run.Part{Name: "events", Run: events.Run}, run.Part{
		Name: "schedule",
		Run: maintenance.Schedule{
			BackupOptions: p.cfg.Backup,
			Data:          p.dir,
			Store:         p.server.raw,
			Failed: func(text string) {
				events.Event(about, corev1.EventTypeWarning, "BackupFailed", text)
			},
			Metrics: p.metrics.backups,
			Log:     log,
		}.Run,
	}), nil
}

func (p *process) etcdAPI() (run.Func, error) {
	c := p.server.c
	return storage.EtcdAPI{
		Listener: c.etcd,
		Share:    c.shares.Other,
		TLS:      c.keys.EtcdTLS(),
		Admit:    c.keys.AdmitEtcd,
		URL:      c.EtcdURL(),
		Dir:      string(c.dir),
		Log:      p.logOf(eventlog.Store),
	}.Serve(p.server.raw), nil
}

// controllers returns the controllers, which wait to become the leader where there is an election.
func (p *process) controllers() (run.Func, error) {
	cfg := p.controllerConfig()
	if p.election.Off {
		return func(ctx context.Context, ready func()) error { return runControllers(ctx, cfg, ready) }, nil
	}
	e := p.election.For(controllersLease)
	e.Component = controllersLease
	return agents.Elected(cfg.Clients(""), e, p.cfg.NodeName, p.waitAgain, cfg.Log, func(ctx context.Context) error {
		return runControllers(ctx, cfg, func() {})
	}), nil
}

// controllerConfig is the configuration of this process's controllers.
func (p *process) controllerConfig() controllers.Config {
	options := p.cfg.Controllers
	if p.server != nil {
		if len(options.PodRanges.Cluster) == 0 {
			options.PodRanges.Cluster = []netip.Prefix{nodehost.DefaultClusterCIDR}
		}
		options.PodRanges.Reserved, _ = p.cfg.Services.Ranges() // checked by Validate
		if p.cfg.wholeControlPlane() {                          // only nodes of this process have long leases
			options.Nodes.LeasesSince = time.Now()
		}
	}
	return controllers.Config{
		Clients: func(name string) *client.Client {
			if name == "" {
				return p.connect(user("system:kube-controller-manager"), "kube-controller-manager/"+version.Kubernetes)
			}
			return p.connect(authn.ServiceAccountUser("kube-system", name, "", auth.InProcess),
				name+"/"+version.Kubernetes)
		},
		Marks:       p.marks,
		Log:         p.logOf(eventlog.ControllerManager),
		ClusterName: "keelson",
		RootCA:      p.signers.RootCA,
		TokenKey:    p.signers.Tokens,
		Authorities: p.signers.Authorities,
		Options:     options,
		Metrics:     p.metrics.controllers,
		Gates:       p.cfg.Gates,
	}
}

// scheduler returns the scheduler, which waits to become the leader where there is an election.
func (p *process) scheduler() (run.Func, error) {
	cfg := loop.Config{
		Client: p.connect(user("system:kube-scheduler"), "kube-scheduler/"+version.Kubernetes),
		Claims: p.metrics.claims,
		Gates:  p.cfg.Gates,
		Marks:  p.marks,
		Log:    p.logOf(eventlog.Scheduler),
	}
	if !p.election.Off && !p.waitAgain {
		cfg.LeaderElect = true
		cfg.Election = p.election.For(scheduling.Lease)
	}
	life, err := scheduling.New(cfg, p.cfg.Scheduler, p.metrics.scheduler, p.rejected)
	if err != nil {
		return nil, err
	}
	if !p.election.Off && p.waitAgain {
		e := p.election.For(scheduling.Lease)
		e.Component = life.Reporter()
		return agents.Elected(cfg.Client, e, p.cfg.NodeName, true, cfg.Log, func(ctx context.Context) error {
			return life.Run(ctx, func() {})
		}), nil
	}
	return life.Run, nil
}

func (p *process) fakeNodes() (run.Func, error) {
	n := p.cfg.Fake.Count
	if p.cfg.Rootless && n+len(p.cfg.Fake.Names) == 0 && !p.cfg.NoNode {
		n = 1
	}
	sim, err := simulate.New(simulate.Config{
		Client: p.connect(user("system:serviceaccount:kube-system:simulate-controller"),
			"keelson-simulate/"+version.Kubernetes),
		Nodes:     n,
		Names:     p.cfg.Fake.Names,
		Renew:     p.cfg.Fake.Heartbeat,
		Untainted: p.cfg.Rootless,
		Marks:     p.marks,
		Log:       p.logOf(eventlog.FakeNodes),
	})
	if err != nil {
		return nil, err
	}
	return sim.Run, nil
}
