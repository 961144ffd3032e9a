// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/auth"
	"keelson/auth/authn"
	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/cluster/noderoles"
	"keelson/event"
	"keelson/lib/option"
	"keelson/lib/run"
	"keelson/timeline/ledger"
)

// table lists the roles of a cluster, each below the roles that it needs. docs/checklists/role.md says how to add one.
func table() []role {
	return []role{
		{
			name:    "apiserver",
			make:    (*process).apiServer,
			options: apiOptions,
			roleCommand: roleCommand{
				word:  "apiserver",
				short: "The API server with its store, alone",
				example: "  keelson apiserver --data-dir /tmp/a                                            # agents " +
					"read their ways to it in /tmp/a/pki\n" +
					"  keelson apiserver --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0",
				rows: apiServerRows,
				run:  runAPIServer,
			},
		},
		{name: "configuration", make: (*process).configuration},
		{name: "certificates", needs: []string{"apiserver"}, make: (*process).certificates},
		{
			name:  "backups",
			needs: []string{"apiserver"},
			when:  func(c Config) bool { return c.Backup.Dir != "" },
			make:  (*process).backups,
		},
		{name: "etcd API", when: func(c Config) bool { return c.EtcdListen != "" }, make: (*process).etcdAPI},
		{name: "network", node: true, make: onNode((*noderoles.Node).Network)},
		{
			name:    noderoles.RuntimeName,
			node:    true,
			make:    onNode((*noderoles.Node).ContainerRuntime),
			options: func(o *Options) []option.Row { return option.In("Pod network", o.CNI.Rows()...) },
			roleCommand: roleCommand{
				word:  "runtime",
				short: "The built-in container runtime, alone: CRI v1 on a unix socket",
				example: "  keelson runtime --listen unix:///run/keelson.sock\n" +
					"  keelson kubelet --container-runtime-endpoint unix:///run/keelson.sock",
				rows: runtimeRows,
				run:  runRuntime,
			},
		},
		{
			name:  "controllers",
			needs: []string{"apiserver"},
			when:  Config.agents,
			make:  (*process).controllers,
			roleIdentity: roleIdentity{
				user:  userNamed("system:kube-controller-manager"),
				agent: "kube-controller-manager",
				file:  "controller-manager",
				steps: ledger.ControllerSteps,
			},
			options: func(o *Options) []option.Row { return o.Controllers.Rows() },
			roleCommand: roleCommand{
				word:  "controller-manager",
				short: "The controllers, alone",
				example: "  keelson controller-manager --kubeconfig /tmp/a/pki/controller-manager.kubeconfig\n" +
					"  keelson controller-manager --controllers '*,-job-controller'",
				rows: controllerManagerRows,
				metrics: func(m roleMetrics) []prometheus.Collector {
					return slices.Concat(m.claims.Collectors(), m.controllers.Collectors())
				},
				config: controllersConfigz,
			},
		},
		{
			name:   "scheduler",
			needs:  []string{"apiserver"},
			when:   Config.agents,
			choice: schedulerChoice,
			make:   (*process).scheduler,
			roleIdentity: roleIdentity{
				user:  userNamed("system:kube-scheduler"),
				agent: "kube-scheduler",
				file:  "scheduler",
				steps: ledger.SchedulerSteps,
			},
			options: func(o *Options) []option.Row { return option.In("Scheduler", o.Scheduler.Rows()...) },
			roleCommand: roleCommand{
				word:    "scheduler",
				short:   "The scheduler, alone",
				example: "  keelson scheduler --kubeconfig /tmp/a/pki/scheduler.kubeconfig",
				rows:    schedulerRows,
				prepare: applySchedulerFile,
				metrics: func(m roleMetrics) []prometheus.Collector {
					return slices.Concat(m.claims.Collectors(), m.scheduler.Collectors())
				},
				config: schedulerConfigz,
			},
		},
		{
			name:  "fake nodes",
			needs: []string{"apiserver"},
			when:  Config.fakeNodes,
			make:  (*process).fakeNodes,
			roleIdentity: roleIdentity{
				user:  userNamed("system:serviceaccount:kube-system:simulate-controller"),
				agent: "keelson-simulate",
			},
		},
		{
			name:   noderoles.ProxyName,
			needs:  []string{"apiserver", noderoles.RuntimeName},
			node:   true,
			choice: "proxy",
			make:   onNode((*noderoles.Node).ServiceProxy),
			purge:  noderoles.PurgeProxy,
			roleIdentity: roleIdentity{
				user:    userNamed("system:kube-proxy"),
				agent:   "kube-proxy",
				file:    "proxy",
				account: "keelson-proxy",
				bound:   "system:node-proxier",
				steps:   []event.Step{event.StepReachable},
			},
			options: func(o *Options) []option.Row { return option.In("Proxy", o.Proxy.Rows()...) },
			roleCommand: roleCommand{
				word:  "proxy",
				short: "The service proxy of this machine, alone",
				example: "  keelson proxy --kubeconfig /tmp/a/pki/proxy.kubeconfig --node-name worker-1\n" +
					"  keelson proxy --cleanup",
				rows: proxyRows,
			},
		},
		{
			name:   noderoles.PolicyName,
			needs:  []string{"apiserver", noderoles.RuntimeName},
			node:   true,
			choice: "network-policy",
			make:   onNode((*noderoles.Node).NetworkPolicy),
			purge:  noderoles.PurgePolicies,
			roleIdentity: roleIdentity{
				user:    account("keelson-networkpolicy"),
				agent:   "keelson-networkpolicy",
				file:    "networkpolicy",
				account: "keelson-networkpolicy",
				rules:   noderoles.PolicyRules(),
				steps:   []event.Step{event.StepPolicy},
			},
			roleCommand: roleCommand{
				word:  "networkpolicy",
				short: "This machine's network policies, alone",
				example: "  keelson networkpolicy --kubeconfig /tmp/a/pki/networkpolicy.kubeconfig --node-name " +
					"worker-1\n" +
					"  keelson networkpolicy --cleanup",
				rows: nodeNameRows,
			},
		},
		{
			name:   noderoles.DNSName,
			needs:  []string{"apiserver", "network"},
			node:   true,
			choice: "dns",
			make:   onNode((*noderoles.Node).DNSServer),
			roleIdentity: roleIdentity{
				user:    account("keelson-dns"),
				agent:   "keelson-dns",
				file:    "dns",
				account: "keelson-dns",
				rules:   noderoles.DNSRules(),
				steps:   []event.Step{event.StepResolvable},
			},
			options: func(o *Options) []option.Row { return option.In("DNS", o.DNS.Rows()...) },
			roleCommand: roleCommand{
				word:    "dns",
				short:   "The cluster's DNS server for this node, alone",
				example: "  keelson dns --kubeconfig /tmp/a/pki/dns.kubeconfig --node-name worker-1",
				rows:    dnsRows,
			},
		},
		{
			name:  "no dns",
			needs: []string{"apiserver", "network"},
			node:  true,
			when:  func(c Config) bool { return slices.Contains(c.Without, "dns") },
			make:  onNode((*noderoles.Node).WithdrawDNS),
		},
		{
			name:         noderoles.KubeletName,
			needs:        []string{"apiserver", noderoles.RuntimeName},
			node:         true,
			make:         onNode((*noderoles.Node).Kubelet),
			roleIdentity: roleIdentity{user: nodeUser, agent: "kubelet", file: "kubelet"},
			options:      func(o *Options) []option.Row { return option.In("Kubelet", o.Node.Rows()...) },
			roleCommand: roleCommand{
				word:  "kubelet",
				short: "This machine's node, alone: kubelet, container runtime and pod network",
				example: "  keelson kubelet                                                      # continues the " +
					"node that `keelson join` made\n" +
					"  keelson kubelet --bootstrap-kubeconfig bootstrap.kubeconfig          # asks for its " +
					"certificates by a token",
				rows: kubeletRows,
				run:  runKubelet,
			},
		},
		{
			name:  noderoles.RoutesName,
			needs: []string{"apiserver", "network"},
			node:  true,
			make:  onNode((*noderoles.Node).Routes),
			purge: noderoles.PurgeRoutes,
			roleIdentity: roleIdentity{
				user:    account("keelson-pod-routes"),
				agent:   "keelson-podroutes",
				account: "keelson-pod-routes",
				rules: []rbacv1.PolicyRule{
					{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
				},
			},
			options: func(o *Options) []option.Row { return option.In("Pod network", o.PodRoutes.Rows()...) },
		},
	}
}

// onNode makes a role of the process's node.
func onNode(role func(*noderoles.Node) (run.Func, error)) func(*process) (run.Func, error) {
	return func(p *process) (run.Func, error) { return role(p.node) }
}

// userNamed returns a function that makes the user name.
func userNamed(name string) func(Config) *auth.User {
	return func(Config) *auth.User { return user(name) }
}

// account returns a function that makes a service account user of kube-system.
func account(name string) func(Config) *auth.User {
	return func(Config) *auth.User { return authn.ServiceAccountUser("kube-system", name, "", auth.InProcess) }
}

// nodeUser is the user of this machine's node.
func nodeUser(c Config) *auth.User { return user("system:node:"+c.NodeName, auth.Nodes) }

// purgeRoles removes the kernel objects of every role.
func purgeRoles(ctx context.Context, dir datadir.Dir) []error {
	var errs []error
	for _, r := range table() {
		if r.purge != nil {
			errs = append(errs, r.purge(ctx, dir))
		}
	}
	return errs
}

// Down stops the instance that runs on dir and removes what the node has in the kernel: see maintenance.Down.
func Down(ctx context.Context, dir datadir.Dir, purge bool, progress func(string, time.Duration)) error {
	return maintenance.Down(ctx, dir, purgeRoles, purge, progress)
}
