// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/configreload"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client"
	"keelson/client/servers"
	"keelson/cluster/agents"
	"keelson/cluster/configz"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/cluster/renewal"
	"keelson/cluster/scheduling"
	"keelson/cluster/storage"
	"keelson/cluster/version"
	"keelson/controllers"
	"keelson/dns/meter"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet"
	"keelson/kubelet/identity"
	"keelson/kubelet/tunnel"
	"keelson/lib/run"
	"keelson/lib/watchdog"
	"keelson/proxy"
	"keelson/proxy/policy"
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
	server   *serverSite // nil if the API server runs in another process
	node     nodeSite
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

// nodeSite is what the roles of a real node share.
type nodeSite struct {
	nodeEnv
	serving credentials.KubeletServing
	metrics *identity.Metrics // of the kubelet's certificates
	runtime *nodehost.Runtime // nil until first used
	// podGroup is the link group of the node's pods; 0 if another process has them, whose data directory may differ.
	podGroup uint32
	// policies enforces NetworkPolicies; nil until first used.
	policies *policy.Agent
	// services is the service proxy; nil until first used.
	services *proxy.Proxy
}

// nodeEnv is what a node needs to know about its process and machine.
type nodeEnv struct {
	// reserved are the ports of this machine that pods must not use, by the name of the listener.
	reserved map[string]net.Addr
	// renew is the lease renewal interval; 0: Kubernetes' default.
	renew time.Duration
}

// heartbeat is the lease renewal interval of a node whose process is the whole control plane: when it ends, no one is
// left to notice (docs/decisions/0004). Every other kubelet has Kubernetes' default.
const heartbeat = 15 * time.Minute

// client creates the client of a role's user.
func (s *site) client(r roleIdentity) *client.Client {
	return s.connect(r.user(s.cfg), r.agent+"/"+version.Kubernetes)
}

// logOf returns the log of a component.
func (s *site) logOf(component string) *slog.Logger { return s.log.With(eventlog.Key, component) }

// build adds the roles selected by want to g. The roles of one wave start together. names are the names of the waves;
// the last one is that of all further waves. The parts first start with the first wave.
func (s *site) build(group *run.Group, started func(string, time.Duration), want func(
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

func (s *site) network() (run.Func, error) {
	rt, err := s.openRuntime()
	if err != nil {
		return nil, err
	}
	return rt.RunNetwork, nil
}

func (s *site) containerRuntime() (run.Func, error) {
	rt, err := s.openRuntime()
	if err != nil {
		return nil, err
	}
	return rt.Run, nil
}

// openRuntime connects to, or creates, the node's container runtime once.
func (s *site) openRuntime() (*nodehost.Runtime, error) {
	if s.node.runtime != nil {
		return s.node.runtime, nil
	}
	of := s.cfg.containerRuntime(s.dir)
	of.Connected = s.connected()
	of.Marks = s.marks
	of.Log = s.log
	rt, err := nodehost.OpenRuntime(of)
	if err != nil {
		return nil, err
	}
	for what, addr := range s.node.reserved {
		rt.Reserve(addr, what)
	}
	s.node.runtime = rt
	return rt, nil
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
		if s.cfg.alone() {                                      // only nodes of this process have long leases
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

func (s *site) kubelet() (run.Func, error) {
	rt, err := s.openRuntime()
	if err != nil {
		return nil, err
	}
	rules, err := s.serviceRules()
	if err != nil {
		return nil, err
	}
	annotations, err := s.tunnelAnnotations()
	if err != nil {
		return nil, err
	}
	cfg := s.cfg
	dir := s.dir
	cl := s.connect(nodeUser(cfg), "kubelet/"+version.Kubernetes)
	callers, err := agents.NewDelegatedAuth(cl, agents.Serving{}, s.logOf(eventlog.Kubelet))
	if err != nil {
		return nil, err
	}
	dog, err := watchdog.Open(os.Getenv, os.Getpid())
	if err != nil {
		return nil, err
	}
	zpages := http.NewServeMux()
	agents.Pages(zpages, "kubelet", cfg.API.Flags, "/configz", "/healthz", "/logs", "/metrics", "/pods", "/runningpods",
		"/stats/summary")
	kc := kubelet.Config{
		NodeName:   cfg.NodeName,
		Client:     cl,
		Runtime:    rt.Client,
		RootDir:    dir.Sub("kubelet"),
		VolumesDir: dir.Sub("volumes"),
		LogDir:     dir.Sub("logs"),
		Serving: kubelet.Serving{
			Address:      netip.IPv4Unspecified(),
			Port:         cmp.Or(cfg.Node.KubeletPort, nodehost.DefaultKubeletPort),
			FallbackPort: cfg.Node.KubeletPort == 0,
			OnListen:     rt.ReserveKubelet,
			TLS:          s.node.serving.TLS,
			ClientCA:     s.node.serving.ClientCAs,
			AllowedNames: []string{credentials.KubeletClientUser},
			ByToken: func(w http.ResponseWriter, r *http.Request, verb string, subresources []string) bool {
				return callers.AdmitAtNode(w, r, cfg.NodeName, verb, subresources)
			},
			Pages: zpages,
			Metrics: slices.Concat(agents.ClientMetrics(), []prometheus.Collector{
				version.Metric(), agents.GateMetric{On: cfg.Gates}, s.node.metrics,
			}),
		},
		NodeObject: kubelet.NodeObject{
			NodeIPs:       cfg.nodeIPs(),
			PodCIDRs:      nodehost.PrefixStrings(cfg.PodCIDRs),
			Annotations:   annotations,
			RegisterNode:  true,
			LeaseInterval: s.node.renew,
		},
		PodDefaults: kubelet.PodDefaults{
			ClusterDomain: cfg.Node.Domain(),
			ClusterDNS:    cfg.podResolvers(),
			StaticPodDir:  dir.Sub("manifests"),
			CgroupRoot:    nodehost.CgroupParent(dir),
			ContainerLogs: cfg.Node.ContainerLogs(),
		},
		Reach: kubelet.Reach{
			Paths: nodehost.Paths{Cluster: dir.ID()},
			Rules: rules,
		},
		Eviction: cfg.Node.Eviction,
		Watchdog: dog,
		Version:  version.Kubernetes,
		Marks:    s.marks,
		Log:      s.logOf(eventlog.Kubelet),
	}
	cfg.Node.Apply(&kc)
	parts := []run.Part{{Name: kubeletRole}}
	if to, remote := kc.Client.Config.Transport.(*servers.Transport); remote && !cfg.Node.NoTunnel {
		t := tunnel.New(to, kc.Log)
		kc.Tunnel = t
		parts = append(parts, run.Part{Name: "tunnel", Run: t.Run})
	}
	zpages.Handle("/configz", agents.Configz(configz.Kubelet(&kc)))
	kl, err := kubelet.New(kc)
	if err != nil {
		return nil, err
	}
	parts[0].Run = kl.Run
	return run.Together(nil, parts...), nil
}

// podAddressCheck returns a function that reports whether an address is that of a pod on this node; nil when podRanges
// say so.
func (s *site) podAddressCheck() (func(netip.Addr) bool, error) {
	if !s.cfg.CNI.Enabled() || !s.cfg.realNode() {
		return nil, nil // absence is an answer here
	}
	rt, err := s.openRuntime()
	if err != nil || rt.Plugins == nil {
		return nil, err
	}
	return rt.Plugins.Has, nil
}
