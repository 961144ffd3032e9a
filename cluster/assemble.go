// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/flowcontrol"
	"keelson/api/gates"
	priorities "keelson/api/scheduling"
	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/configreload"
	"keelson/apiserver/outbound"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
	"keelson/client"
	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/maintenance"
	"keelson/cluster/marks"
	"keelson/cluster/renewal"
	"keelson/cluster/requests"
	"keelson/cluster/rights"
	"keelson/cluster/scheduling"
	"keelson/cluster/simulation"
	"keelson/cluster/storage"
	"keelson/cluster/version"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/store"
	"keelson/timeline/ask"
	"keelson/timeline/ledger"
)

// agentsHere are the agents that certainly run in this process. With leader election another instance may be the
// leader.
func (c *Cluster) agentsHere() map[string]bool {
	alone := c.cfg.wholeControlPlane()
	return map[string]bool{
		controllersLease: alone,
		scheduling.Lease: alone && !slices.Contains(c.cfg.Without, schedulerChoice),
	}
}

// assembled is an API server with the objects built for it.
type assembled struct {
	api    *apiserver.Server
	store  store.Store // as the server reads it, decrypted
	files  *configreload.Files
	marks  *event.Recorder
	tokens *authn.Tokens // issues and verifies the tokens of service accounts
	// metrics are those of the roles, which the server shows
	metrics roleMetrics
}

// assemble builds the API server over st, in one line: each part is made once, of those before it. See
// docs/decisions/0203. Nothing runs yet.
func (c *Cluster) assemble(st store.Store) (assembled, error) {
	// What all parts report to, and the files that they read again.
	kept := ledger.New(ledger.Config{
		DecisionBytes: c.cfg.DecisionMemory << 20,
		Log:           c.log.With(eventlog.Key, eventlog.Timeline),
	})
	listeners := append([]event.Listener{kept.Listen, eventlog.New(c.log).Listen}, c.listeners...)
	recorder := event.NewRecorder(listeners...)
	files := configreload.New(c.log.With(eventlog.Key, eventlog.Cluster), &c.rejected)
	if err := c.keys.Serving.Watch(files); err != nil {
		return assembled{}, err
	}

	// store -> outbound -> resources -> access.
	served, err := c.cfg.API.Encryption.Wrap(st, files)
	if err != nil {
		return assembled{}, err
	}
	services, err := c.cfg.serviceSettings(c.listener)
	if err != nil {
		return assembled{}, err
	}
	egress := outbound.New(services.address.Outbound(c.otherListeners()...))
	data := apiserver.Open(apiserver.DataConfig{
		Store:     served,
		Outbound:  egress,
		Kubelet:   c.keys.KubeletClient,
		Gates:     c.cfg.Gates,
		InProcess: c.agentsHere(),
		Decision:  ask.Decision(kept),
		Log:       c.log.With(eventlog.Key, eventlog.APIServer),
	})

	// authentication, authorization -> admission.
	rbac := &authz.RBAC{}
	accounts := rightsOf(table()).Accounts()
	parts, tokens, err := requests.Parts(c.keys, c.log, data, egress, rbac, &c.cfg.API, c.cfg.nodeChosenRanges(),
		accounts, files)
	if err != nil {
		return assembled{}, err
	}
	auditor, err := c.cfg.API.Audit.New(requests.ThroughEgress(egress))
	if err != nil {
		return assembled{}, err
	}
	tracing, err := c.cfg.API.Tracing.New()
	if err != nil {
		return assembled{}, err
	}

	// handlers -> pipeline -> server.
	metrics := newRoleMetrics()
	sender := marks.Sender(data.Reader, stepsOf(table()), accounts)
	keyUsers := credentials.ServeUsers(c.keys, tokens, data.KubeletCertificates)
	server, err := apiserver.New(apiserver.Config{
		Data:       data,
		Parts:      parts,
		Serving:    c.serving(),
		Limits:     apiserver.Limits{Connections: c.shares.API, Streams: c.shares.Streams},
		Objects:    c.objects(requests.RBACEventHandlers(rbac)),
		Address:    services.address,
		NodePorts:  services.nodePorts,
		FrontProxy: c.keys.FrontProxyCert.Certificate,
		Pages: apiserver.Pages{
			Version:     version.Info(),
			Flags:       c.cfg.API.Flags,
			Certificate: func() error { return c.keys.Serving.Valid(time.Now()) },
			Routes: []apiserver.Route{
				{Path: "/keelson/v1/", Handler: ask.Handler(kept, marks.Asker)},
				{Path: simulation.Path, Handler: simulation.Handler(marks.Asker), Heavy: true},
				{Path: "/keelson/v1/marks", Handler: kept.Handler(sender)},
				{Path: maintenance.BackupPath, Handler: maintenance.ServeBackup(st, c.log)},
				{Path: maintenance.ConfigurationPath, Handler: maintenance.ServeRejected(&c.rejected)},
				{Path: credentials.ListPath, Handler: credentials.ServeList(c.certificates().List)},
				{Path: credentials.UsersPath, Handler: keyUsers},
			},
		},
		Reports: apiserver.Reports{
			Audit:      auditor,
			Tracing:    tracing,
			Collectors: slices.Concat(c.collectors(), metrics.collectors(), storage.Metrics(st)),
			Marks:      recorder,
			Log:        c.log.With(eventlog.Key, eventlog.APIServer),
		},
	})
	if err != nil {
		return assembled{}, err
	}

	// What changes the server while it runs.
	requests.WatchClientCA(c.keys, c.cfg.API.Authentication.ClientCAFile, files, server)
	return assembled{
		api:     server,
		store:   served,
		files:   files,
		marks:   recorder,
		tokens:  tokens,
		metrics: metrics,
	}, nil
}

// certificates are those that this process has in use.
func (c *Cluster) certificates() renewal.Certificates {
	return renewal.Certificates{
		Keys: c.keys,
		Node: c.cfg.realNode(),
		API:  &c.cfg.API,
		Etcd: &c.cfg.Etcd,
	}
}

// serving is how requests reach the API server.
func (c *Cluster) serving() apiserver.Serving {
	return apiserver.Serving{
		Listener:      c.listener,
		TLS:           c.keys.Serving.TLS(),
		StandardHTTP2: c.cfg.API.Serving.StandardHTTP2,
	}
}

// objects are what the API server keeps and follows; rules are the event handlers of the authorizer.
func (c *Cluster) objects(rules []access.EventHandler) apiserver.Objects {
	return apiserver.Objects{
		Bootstrap: slices.Concat(bootstrapObjects(c.cfg.Gates), []runtime.Object{c.keys.AuthenticationInfo()},
			c.keys.KubeletClientInfo()),
		RemovedBindings: rightsOf(table()).OldNodeBindings(),
		EventHandlers:   rules,
		Checks:          scheduling.PolicyChecks(),
		SharedStore:     len(c.cfg.Etcd.Servers) > 0 || c.etcd != nil,
	}
}

// collectors are the metrics of the process, in addition to those of the server and its roles.
func (c *Cluster) collectors() []prometheus.Collector {
	return slices.Concat(agents.ClientMetrics(), agents.ElectionMetrics(), []prometheus.Collector{
		version.Metric(),
		agents.GateMetric{On: c.cfg.Gates},
		credentials.Metric{All: c.certificates().List},
	})
}

// otherListeners are the addresses on which this process listens in addition to the API's.
func (c *Cluster) otherListeners() []netip.AddrPort {
	if c.etcd == nil {
		return nil
	}
	a, ok := c.etcd.Addr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	return []netip.AddrPort{a.AddrPort()}
}

func user(name string, groups ...string) *auth.User {
	return &auth.User{Name: name, Groups: append(groups, auth.Authenticated), How: auth.InProcess}
}

// inProcess returns an agent's client of the server in this process. An error would be a programming error.
func inProcess(server *apiserver.Server, u *auth.User, agent string) *client.Client {
	cl, err := client.InProcess(server.As(u), server.Source(u), agent)
	if err != nil {
		panic(err)
	}
	return cl
}

// bootstrapObjects exist in every cluster.
func bootstrapObjects(on gates.On) []runtime.Object {
	out := bootstrap.Policy(on)
	for _, pc := range priorities.System() {
		out = append(out, pc)
	}
	out = append(out, flowcontrol.Bootstrap()...)
	out = append(out, rightsOf(table()).Objects()...)
	return append(append(out, requests.TokenTracking()), rights.Ask(simulation.Path)...)
}
