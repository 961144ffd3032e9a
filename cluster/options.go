// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"keelson/apiserver/options"
	"keelson/dns"
	"keelson/proxy"
)

// Options are what roles can be told, whether they run together or apart. A role's row in table has its flags.
type Options struct {
	// API is what the API server does beside serving.
	API options.Options
	// Listen says where the API is served.
	Listen ListenOptions
	// Services says where addresses and node ports of services come from.
	Services options.Services
	// Node says how this machine's node bounds its pods.
	Node NodeOptions
	// PodRoutes says how other machines' pods are reached.
	PodRoutes PodRouteOptions
	// Controllers says which controllers run, and how.
	Controllers ControllerOptions
	// DNS is what the node's DNS server is told.
	DNS dns.Options
	// Proxy says which addresses serve Services.
	Proxy proxy.Options
	// Without names roles that are switched off, by their choice in table.
	Without []string
}

// AddFlags adds the flags of all roles, each of which sets its part of o.
func (o *Options) AddFlags(fl *pflag.FlagSet) {
	for _, r := range table() {
		r.addOptions(fl, o)
	}
}

func (r *role) addOptions(fl *pflag.FlagSet, o *Options) {
	if r.choice != "" {
		fl.Var(&choice{r.choice, o}, r.choice, "`builtin`, or none: leave out the "+r.name+", because something else does its work")
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
