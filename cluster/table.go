// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"

	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/auth"
	"keelson/auth/authn"
	"keelson/controllers"
	"keelson/lib/mark"
	"keelson/timeline"
)

// kubeletRole is the name of the role that makes a machine a node.
const kubeletRole = "kubelet"

// table lists the roles of a cluster; those that a role needs stand above it. docs/checklists/role.md says how one is added.
func table() []role {
	return []role{
		{
			name: "apiserver", make: (*site).apiServer,
			options:     func(fl *pflag.FlagSet, o *Options) { o.Listen.flags(fl); o.API.AddFlags(fl); o.Services.AddFlags(fl) },
			roleCommand: roleCommand{word: "apiserver", short: "The API server with its store, alone", flags: apiServerFlags, run: runAPIServer},
		},
		{name: "configuration", make: (*site).configuration},
		{name: "etcd API", in: func(c Config) bool { return c.EtcdListen != "" }, make: (*site).etcdAPI},
		{name: "network", node: true, make: (*site).network},
		{
			name: "container runtime", node: true, make: (*site).containerRuntime,
			roleCommand: roleCommand{word: "runtime", short: "The built-in container runtime, alone: CRI v1 on a unix socket", flags: runtimeFlags, run: runRuntime},
		},
		{
			name: "controllers", needs: []string{"apiserver"}, in: Config.agents, make: (*site).controllers,
			roleIdentity: roleIdentity{user: is("system:kube-controller-manager"), agent: "kube-controller-manager", file: "controller-manager", steps: timeline.ControllerSteps},
			options:      func(fl *pflag.FlagSet, o *Options) { controllerFlags(fl, &o.Controllers) },
			roleCommand:  roleCommand{word: "controller-manager", short: "The controllers, alone", flags: controllerManagerFlags, metrics: controllers.Collectors},
		},
		{
			name: "scheduler", needs: []string{"apiserver"}, in: Config.agents, make: (*site).scheduler,
			roleIdentity: roleIdentity{user: is("system:kube-scheduler"), agent: "kube-scheduler", file: "scheduler", steps: timeline.SchedulerSteps},
			roleCommand:  roleCommand{word: "scheduler", short: "The scheduler, alone", flags: agentFlags(schedulerLease, SchedulerPort)},
		},
		{
			name: "fake nodes", needs: []string{"apiserver"}, in: Config.fakeNodes, make: (*site).fakeNodes,
			roleIdentity: roleIdentity{user: is("system:serviceaccount:kube-system:simulate-controller"), agent: "keelson-simulate"},
		},
		{
			name: "proxy", needs: []string{"apiserver"}, node: true, choice: "proxy", make: (*site).proxy, purge: purgeProxy,
			roleIdentity: roleIdentity{
				user: is("system:kube-proxy"), agent: "kube-proxy", file: "proxy", bound: "system:node-proxier", steps: []mark.Step{mark.StepReachable},
			},
			options:     func(fl *pflag.FlagSet, o *Options) { o.Proxy.AddFlags(fl) },
			roleCommand: roleCommand{word: "proxy", short: "The service proxy of this machine, alone", flags: nodeNameFlag},
		},
		{
			name: networkPolicyRole, needs: []string{"apiserver"}, node: true, choice: "network-policy", make: (*site).networkPolicy, purge: purgePolicies,
			roleIdentity: networkPolicyIdentity(),
			roleCommand:  roleCommand{word: "networkpolicy", short: "This machine's network policies, alone", flags: nodeNameFlag},
		},
		{
			name: namesRole, needs: []string{"apiserver", "network"}, node: true, choice: "dns", make: (*site).names,
			roleIdentity: roleIdentity{user: account("keelson-dns"), agent: "keelson-dns", file: "dns", rules: nameRules(), steps: nameSteps},
			options:      func(fl *pflag.FlagSet, o *Options) { o.DNS.AddFlags(fl) },
			roleCommand:  roleCommand{word: "dns", short: "The cluster's DNS server for this node, alone", flags: namesFlags},
		},
		{name: "no dns", needs: []string{"apiserver", "network"}, node: true, in: func(c Config) bool { return slices.Contains(c.Without, "dns") }, make: (*site).noNames},
		{
			name: kubeletRole, needs: []string{"apiserver", "container runtime"}, node: true, make: (*site).kubelet,
			roleIdentity: roleIdentity{user: theNode, agent: "kubelet", file: "kubelet"},
			options:      func(fl *pflag.FlagSet, o *Options) { o.Node.flags(fl) },
			roleCommand: roleCommand{
				word: "kubelet", short: "This machine's node, alone: kubelet, container runtime and pod network", flags: kubeletFlags, run: runKubelet,
			},
		},
		{
			name: "pod routes", needs: []string{"apiserver", "network"}, node: true, make: (*site).podRoutes, purge: purgePodRoutes,
			roleIdentity: roleIdentity{
				user: is("system:keelson-pod-routes"), agent: "keelson-podroutes",
				rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}}},
			},
			options: func(fl *pflag.FlagSet, o *Options) { o.PodRoutes.flags(fl) },
		},
	}
}

// is makes the user of that name.
func is(name string) func(Config) *auth.User {
	return func(Config) *auth.User { return user(name) }
}

// account makes a service account of kube-system.
func account(name string) func(Config) *auth.User {
	return func(Config) *auth.User { return authn.ServiceAccountUser("kube-system", name, "", "in process") }
}

// theNode is this machine's node.
func theNode(c Config) *auth.User { return user("system:node:"+c.NodeName, auth.Nodes) }

// agents tells whether controllers and scheduler run here.
func (c Config) agents() bool { return !c.NoAgents }

// fakeNodes tells whether there are any, or have been: those of an earlier run are removed.
func (c Config) fakeNodes() bool { return c.FakeNodes > 0 || c.Rootless && !c.NoNode || !c.NoAgents }

// purgeRoles has every role remove what it had in the kernel.
func purgeRoles(ctx context.Context, dir DataDir) []error {
	var errs []error
	for _, r := range table() {
		if r.purge != nil {
			errs = append(errs, r.purge(ctx, dir))
		}
	}
	return errs
}
