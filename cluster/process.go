// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/configreload"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client"
	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
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

// site is what the roles of one process share; its methods build them.
type site struct {
	cfg   Config
	dir   datadir.Dir
	marks *event.Recorder
	log   *slog.Logger
	// connect creates the client of a user; the second argument is its name in the server's log.
	connect Connect
	// election configures leader election. patient instances wait for another term when they lose the lease, others
	// end.
	election  agents.Election
	waitAgain bool
	signers   credentials.Signers
	// rejected is what the API server in this process reports configuration files that are not in use; nil: it runs in
	// another process.
	rejected *configreload.Rejected
	server   *serverSite     // nil if the API server runs in another process
	node     *noderoles.Node // nil in a process without roles of a node
	metrics  roleMetrics
}

// roleMetrics are the metrics of roles, of one cluster. Those of a node's roles are nil in a process without an API
// server: it has no /metrics.
type roleMetrics struct {
	claims      *client.Claims // of controllers and scheduler
	controllers *controllers.Metrics
	scheduler   *scheduling.Metrics
	proxy       *proxy.Metrics
	dns         *meter.Meter
}

func newRoleMetrics() roleMetrics {
	metrics := newAgentMetrics()
	metrics.proxy = proxy.NewMetrics()
	metrics.dns = meter.New()
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
		m.proxy.Collectors(), m.dns.Collectors())
}

// serverSite belongs to the API server in this process.
type serverSite struct {
	assembled
	c *Cluster
	// raw is the store as it is on disk, in which the server may encrypt what it writes.
	raw store.Store
}

// heartbeat is the lease renewal interval of a node whose process is the whole control plane: when it ends, no one is
// left to notice (docs/decisions/0004). Every other kubelet has Kubernetes' default.
const heartbeat = 15 * time.Minute

// addNode makes the node of the process. has reports whether a role runs here. What else site has must be set.
func (s *site) addNode(process noderoles.Process, has func(role string) bool) (err error) {
	services := s.cfg.keptServices
	if len(services) == 0 {
		services, _ = s.cfg.Services.Ranges() // checked by Validate
	}
	var runtime *nodehost.RuntimeConfig
	if has(noderoles.RuntimeName) {
		of := s.cfg.containerRuntime(s.dir)
		runtime = &of
	}
	s.node, err = noderoles.New(noderoles.Config{
		NodeName: s.cfg.NodeName,
		Dir:      s.dir,
		Here: noderoles.Here{
			Server:   s.server != nil,
			Runtime:  runtime,
			Proxy:    has(noderoles.ProxyName),
			Policies: has(noderoles.PolicyName),
		},
		Process: process,
		Addresses: noderoles.Addresses{
			PodCIDRs:     s.cfg.PodCIDRs,
			NodeIPs:      s.cfg.nodeIPs(),
			Services:     services,
			ClusterCIDRs: s.cfg.clusterRanges(s.server != nil),
		},
		Options: noderoles.Options{
			Endpoint:  s.cfg.RuntimeEndpoint,
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
	return err
}

// client creates the client of a role's user.
func (s *site) client(r roleIdentity) *client.Client {
	return s.connect(r.user(s.cfg), r.agent+"/"+version.Kubernetes)
}

// logOf returns the log of a component.
func (s *site) logOf(component string) *slog.Logger { return s.log.With(eventlog.Key, component) }

// addRoles adds the roles selected by want to group. The roles of one wave start together. names are the names of the
// waves; the last one is that of all further waves. The parts first start with the first wave.
func (s *site) addRoles(group *run.Group, started func(string, time.Duration), want func(
	*role,
) bool, first []run.Part, names ...string,
) error {
	for i, wave := range waves(table(), func(r *role) bool { return want(r) && r.on(s.cfg) }) {
		var parts []run.Part
		if i == 0 {
			parts = first
		}
		for _, r := range wave {
			f, err := r.make(s)
			if err != nil {
				return err
			}
			if f != nil {
				parts = append(parts, run.Part{Name: r.name, Run: f})
			}
		}
		if len(parts) > 0 {
			group.Add(names[min(i, len(names)-1)], run.Together(started, parts...))
		}
	}
	return nil
}

func (s *site) apiServer() (run.Func, error) { return s.server.server.Run, nil }

func (s *site) configuration() (run.Func, error) { return s.server.files.Part(), nil }

// certificates renews the certificates of this process.
func (s *site) certificates() (run.Func, error) {
	c := s.server.c
	agent := "keelson-certificates/" + version.Kubernetes
	signer := authn.ServiceAccountUser(metav1.NamespaceSystem, "bootstrap-signer", "", auth.InProcess)
	return renewal.Config{
		Certificates:     c.certificates(),
		Dir:              c.dir,
		URL:              c.URL(),
		MergedKubeconfig: c.cfg.MergedKubeconfig,
		Server:           s.server.server,
		Store:            s.server.raw,
		Tokens:           s.server.tokens,
		Signer:           s.connect(signer, agent),
		Events:           s.connect(user("system:kube-controller-manager"), agent),
		Log:              s.logOf(eventlog.Certificates),
	}.Run, nil
}

func (s *site) etcdAPI() (run.Func, error) {
	c := s.server.c
	return storage.EtcdAPI{
		Listener: c.etcd,
		Share:    c.shares.Other,
		TLS:      c.keys.EtcdTLS(),
		Admit:    c.keys.AdmitEtcd,
		URL:      c.EtcdURL(),
		Dir:      string(c.dir),
		Log:      s.logOf(eventlog.Store),
	}.Serve(s.server.raw), nil
}

// controllers returns the controllers, which wait to become the leader where there is an election.
func (s *site) controllers() (run.Func, error) {
	cfg := s.controllerConfig()
	if s.election.Off {
		return func(ctx context.Context, ready func()) error { return runControllers(ctx, cfg, ready) }, nil
	}
	e := s.election.For(controllersLease)
	e.Component = controllersLease
	return agents.Elected(cfg.Clients(""), e, s.cfg.NodeName, s.waitAgain, cfg.Log, func(ctx context.Context) error {
		return runControllers(ctx, cfg, func() {})
	}), nil
}

// controllerConfig is the configuration of this process's controllers.
func (s *site) controllerConfig() controllers.Config {
	options := s.cfg.Controllers
	if s.server != nil {
		if len(options.PodRanges.Cluster) == 0 {
			options.PodRanges.Cluster = []netip.Prefix{nodehost.DefaultClusterCIDR}
		}
		options.PodRanges.Reserved, _ = s.cfg.Services.Ranges() // checked by Validate
		if s.cfg.wholeControlPlane() {                          // only nodes of this process have long leases
			options.Nodes.LeasesSince = time.Now()
		}
	}
	return controllers.Config{
		Clients: func(name string) *client.Client {
			if name == "" {
				return s.connect(user("system:kube-controller-manager"), "kube-controller-manager/"+version.Kubernetes)
			}
			return s.connect(authn.ServiceAccountUser("kube-system", name, "", auth.InProcess),
				name+"/"+version.Kubernetes)
		},
		Marks:       s.marks,
		Log:         s.logOf(eventlog.ControllerManager),
		ClusterName: "keelson",
		RootCA:      s.signers.RootCA,
		TokenKey:    s.signers.Tokens,
		Authorities: s.signers.Authorities,
		Options:     options,
		Metrics:     s.metrics.controllers,
		Gates:       s.cfg.Gates,
	}
}

// scheduler returns the scheduler, which waits to become the leader where there is an election.
func (s *site) scheduler() (run.Func, error) {
	cfg := loop.Config{
		Client: s.connect(user("system:kube-scheduler"), "kube-scheduler/"+version.Kubernetes),
		Claims: s.metrics.claims,
		Gates:  s.cfg.Gates,
		Marks:  s.marks,
		Log:    s.logOf(eventlog.Scheduler),
	}
	if !s.election.Off && !s.waitAgain {
		cfg.LeaderElect = true
		cfg.Election = s.election.For(scheduling.Lease)
	}
	life, err := scheduling.New(cfg, s.cfg.Scheduler, s.metrics.scheduler, s.rejected)
	if err != nil {
		return nil, err
	}
	if !s.election.Off && s.waitAgain {
		e := s.election.For(scheduling.Lease)
		e.Component = life.Reporter()
		return agents.Elected(cfg.Client, e, s.cfg.NodeName, true, cfg.Log, func(ctx context.Context) error {
			return life.Run(ctx, func() {})
		}), nil
	}
	return life.Run, nil
}

func (s *site) fakeNodes() (run.Func, error) {
	n := s.cfg.FakeNodes
	if s.cfg.Rootless && n+len(s.cfg.FakeNames) == 0 && !s.cfg.NoNode {
		n = 1
	}
	sim, err := simulate.New(simulate.Config{
		Client: s.connect(user("system:serviceaccount:kube-system:simulate-controller"),
			"keelson-simulate/"+version.Kubernetes),
		Nodes:     n,
		Names:     s.cfg.FakeNames,
		Renew:     s.cfg.FakeHeartbeat,
		Untainted: s.cfg.Rootless,
		Marks:     s.marks,
		Log:       s.logOf(eventlog.FakeNodes),
	})
	if err != nil {
		return nil, err
	}
	return sim.Run, nil
}
