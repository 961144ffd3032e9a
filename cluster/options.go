// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/gates"
	"keelson/apiserver/options"
	"keelson/apiserver/resources"
	"keelson/cluster/listen"
	"keelson/cluster/maintenance"
	"keelson/cluster/nodehost"
	"keelson/cluster/scheduling"
	"keelson/controllers"
	"keelson/dns"
	"keelson/lib/option"
	"keelson/proxy"
	"keelson/timeline/ledger"
)

// Options configure the roles, whether they share a process or not. A role's row in table has its rows of options.
type Options struct {
	// Gates are the enabled feature gates.
	Gates gates.On
	// API configures the API server.
	API options.Options
	// Listen says where the API is served.
	Listen listen.Options
	// Services are the service CIDRs and the node port range.
	Services options.Services
	// Node configures this machine's kubelet.
	Node nodehost.Options
	// CNI says whether CNI plugins attach pods.
	CNI nodehost.CNIOptions
	// PodRoutes says how pods of other machines are reached.
	PodRoutes nodehost.PodRouteOptions
	// Controllers selects and configures the controllers.
	Controllers controllers.Options
	// Scheduler configures the scheduler.
	Scheduler scheduling.Options
	// DNS configures the node's DNS server.
	DNS dns.Options
	// Proxy configures the service proxy.
	Proxy proxy.Options
	// DecisionMemory limits, in MiB, the scheduler decisions that the API server keeps; 0: the timeline's default.
	DecisionMemory int
	// Backup says when backups of the store are made.
	Backup maintenance.BackupOptions
	// Without names roles that are disabled, by their choice in table.
	Without []string
}

// FlagGroups are the groups of flags in the order of the help text: kube-apiserver's, then those of the other
// components.
var FlagGroups = []string{
	"Generic", "Etcd", "Backup", "Secure serving", "Auditing", "Authentication", "Authorization", "Admission", "Traces",
	"Leader election",
	"Built-in components", "Pod network", "Proxy", "DNS", "Kubelet", "Kubelet eviction", "Controllers",
	"Concurrent syncs",
	"Scheduler", "Node lifecycle controller", "Attachdetach controller", "Horizontalpodautoscaling controller",
	"Nodeipam controller",
}

// Rows are the options of all roles. Each sets its part of o.
func (o *Options) Rows() []option.Row {
	var rows []option.Row
	for _, r := range table() {
		rows = append(rows, r.optionRows(o)...)
	}
	return rows
}

// apiOptions are those of the API server.
func apiOptions(o *Options) []option.Row {
	return slices.Concat(
		option.In("Generic", o.Listen.Rows()...),
		option.In("Generic", o.Services.Rows()...),
		option.In("Generic",
			gatesRow(&o.Gates),
			option.Set(runtimeConfig{}, "runtime-config",
				"API versions that must be served: `GROUP/VERSION=true`,... (those that Keelson has, it serves)"),
			option.New(&o.DecisionMemory, "decision-memory", ledger.DefaultDecisionBytes>>20,
				"keep the scheduler's last decisions, for keelson why and poddecisions, in that many MiB")),
		option.In("Backup", o.Backup.Rows()...),
		o.API.Rows(),
	)
}

func (r *role) optionRows(o *Options) []option.Row {
	var rows []option.Row
	if r.choice != "" {
		rows = option.In("Built-in components", option.Set(&choice{r.choice, o}, r.choice,
			"`builtin`, or none if another program is the cluster's "+r.name))
	}
	if r.options != nil {
		rows = append(rows, r.options(o)...)
	}
	return rows
}

// choice is the flag that disables a role: builtin or none.
type choice struct {
	name string
	o    *Options
}

// String formats the flag's value.
func (c *choice) String() string {
	if c.o != nil && slices.Contains(c.o.Without, c.name) {
		return "none"
	}
	return "builtin"
}

// Set parses the flag's value.
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

// Type names the value in the usage text.
func (*choice) Type() string { return "string" }

func gatesRow(on *gates.On) option.Row {
	return option.Set(on, "feature-gates",
		"Kubernetes feature gates `NAME=BOOL`,... (GenericWorkload, AllowServiceExternalIPs; "+
			"the others keep the release's defaults)")
}

// runtimeConfig is kube-apiserver's --runtime-config. The flag is checked and has no effect: Keelson serves every
// version it has, some of them only with their feature gate.
type runtimeConfig struct{}

// String formats the flag's value.
func (runtimeConfig) String() string { return "" }

// Type names the value in the usage text.
func (runtimeConfig) Type() string { return "string" }

// Set checks the flag's value.
func (runtimeConfig) Set(text string) error {
	var errs []error
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			errs = append(errs, checkVersion(part))
		}
	}
	return errors.Join(errs...)
}

func checkVersion(part string) error {
	what, value, given := strings.Cut(part, "=")
	if on, err := strconv.ParseBool(value); given && err != nil {
		return fmt.Errorf("%s: %q is neither true nor false", what, value)
	} else if given && !on {
		return fmt.Errorf("%s cannot be switched off", what)
	}
	switch what {
	case "api/all", "api/ga", "api/beta", "api/alpha":
		return nil
	}
	words := strings.SplitN(what, "/", 3)
	if what == "v1" || len(words) > 1 && words[0] == "api" {
		words = []string{"", words[len(words)-1]}
	}
	for _, row := range resources.Table(gates.All()) {
		n := row.Kind.Names
		if len(words) >= 2 && (schema.GroupVersion{Group: n.Group, Version: n.Version}) == (schema.GroupVersion{
			Group:   words[0],
			Version: words[1],
		}) && (len(words) == 2 || words[2] == n.Resource) {
			return nil
		}
	}
	return fmt.Errorf("this server has no %s", what)
}
