// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"keelson/api/gates"
	"keelson/apiserver/options"
	"keelson/dns"
	"keelson/lib/flaggroup"
	"keelson/proxy"
	"keelson/timeline"
)

// Options are what roles can be told, whether they run together or apart. A role's row in table has its flags.
type Options struct {
	// Gates are those of Kubernetes' feature gates that are on.
	Gates gates.On
	// API is what the API server does beside serving.
	API options.Options
	// Listen says where the API is served.
	Listen ListenOptions
	// Services says where addresses and node ports of services come from.
	Services options.Services
	// Node says how this machine's node bounds its pods.
	Node NodeOptions
	// CNI says whether plugins attach pods.
	CNI CNIOptions
	// PodRoutes says how other machines' pods are reached.
	PodRoutes PodRouteOptions
	// Controllers says which controllers run, and how.
	Controllers ControllerOptions
	// Scheduler says how pods get their nodes.
	Scheduler SchedulerOptions
	// DNS is what the node's DNS server is told.
	DNS dns.Options
	// Proxy says which addresses serve Services.
	Proxy proxy.Options
	// DecisionMemory bounds, in MiB, what the API server remembers of the scheduler's last decisions; 0: the timeline's default.
	DecisionMemory int
	// Without names roles that are switched off, by their choice in table.
	Without []string
}

// FlagGroups are the groups of flags in the order in which help shows them: kube-apiserver's, then those of the other components.
var FlagGroups = []string{
	"Generic", "Etcd", "Secure serving", "Auditing", "Authentication", "Authorization", "Admission", "Traces", "Leader election",
	"Built-in components", "Pod network", "Proxy", "DNS", "Kubelet", "Kubelet eviction", "Controllers", "Concurrent syncs",
	"Scheduler", "Node lifecycle controller", "Attachdetach controller", "Horizontalpodautoscaling controller", "Nodeipam controller",
}

// AddFlags adds the flags of all roles, each of which sets its part of o.
func (o *Options) AddFlags(fl *pflag.FlagSet) {
	for _, r := range table() {
		r.addOptions(fl, o)
	}
}

// apiOptions adds the flags of the API server.
func apiOptions(fl *pflag.FlagSet, o *Options) {
	flaggroup.Add(fl, "Generic", func(fl *pflag.FlagSet) {
		o.Listen.flags(fl)
		o.Services.AddFlags(fl)
		gatesFlag(fl, &o.Gates)
		fl.Var(runtimeConfig{}, "runtime-config", "API versions that must be served: `GROUP/VERSION=true`,... (those that Keelson has, it serves)")
		fl.IntVar(&o.DecisionMemory, "decision-memory", timeline.DefaultDecisionBytes>>20, "keep the scheduler's last decisions, for keelson why and poddecisions, in that many MiB")
	})
	o.API.AddFlags(fl)
}

func (r *role) addOptions(fl *pflag.FlagSet, o *Options) {
	if r.choice != "" {
		flaggroup.Add(fl, "Built-in components", func(fl *pflag.FlagSet) {
			fl.Var(&choice{r.choice, o}, r.choice, "`builtin`, or none: leave out the "+r.name+", because something else does its work")
		})
	}
	if r.options != nil {
		r.options(fl, o)
	}
}

// choice is the flag by which a role is switched off.
type choice struct {
	name string
	o    *Options
}

// String is the flag's value.
func (c *choice) String() string {
	if c.o != nil && slices.Contains(c.o.Without, c.name) {
		return "none"
	}
	return "builtin"
}

// Set reads the flag's value.
func (c *choice) Set(text string) error {
	c.o.Without = slices.DeleteFunc(c.o.Without, func(n string) bool { return n == c.name })
	switch text {
	case "none":
		c.o.Without = append(c.o.Without, c.name)
	case "builtin":
	default:
		return fmt.Errorf("%q is neither builtin nor none", text)
	}
	return nil
}

// Type is how the usage text names it.
func (*choice) Type() string { return "string" }
