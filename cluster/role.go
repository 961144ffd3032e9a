// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/auth"
	"keelson/cluster/agents"
	"keelson/cluster/datadir"
	"keelson/cluster/noderoles"
	"keelson/cluster/rights"
	"keelson/event"
	"keelson/lib/option"
	"keelson/lib/run"
)

// role is one part of a cluster: a row of table. An unset field means that the role does not have it.
type role struct {
	// name identifies the role in progress output, errors and needs.
	name string
	// needs are the roles in the same process that must be ready first.
	needs []string
	// node roles run on a real node next to its kubelet, in `keelson up` and in `keelson kubelet`.
	node bool
	// when reports whether a cluster with that configuration has the role; nil: always. Node roles need not check for a
	// real node.
	when func(Config) bool
	// choice is the flag that disables the role: --CHOICE=none.
	choice string
	roleIdentity
	// make builds the role. A nil Func: there is nothing to run.
	make func(*process) (run.Func, error)
	// purge removes the role's kernel objects after its process has ended; `keelson down` calls it. If nothing is
	// there, that is no error.
	purge func(ctx context.Context, dir datadir.Dir) error
	// options are those that the role has in every process; nil: none.
	options func(o *Options) []option.Row
	roleCommand
}

// roleIdentity is the user as which a role works, with its rights.
type roleIdentity struct {
	user func(Config) *auth.User
	// agent is the client's name in the server's log.
	agent string
	// file.kubeconfig below pki/ is the kubeconfig of the role in a process of its own.
	file string
	// account is the service account in kube-system as which the role works next to a kubelet in another process than
	// the server (nodeAccounts).
	account string
	// bound is a ClusterRole of Kubernetes that is bound to the user and the account. rules are further rights, as the
	// ClusterRole keelson:NAME. Neither: Kubernetes' bootstrap policy binds the user.
	bound string
	rules []rbacv1.PolicyRule
	// steps are the marks that the role may send.
	steps []event.Step
}

// roleCommand is a role as a process of its own.
type roleCommand struct {
	word, short string
	// example is the command line in the help text.
	example string
	// rows are the options that the role has only in a process of its own; nil: none.
	rows func(r *RoleConfig) []option.Row
	// prepare applies the configuration file that a flag names; nil: there is none.
	prepare func(r *RoleConfig) error
	// metrics are the role's own collectors; nil: none.
	metrics func(roleMetrics) []prometheus.Collector
	// config returns what /configz serves; nil: nothing.
	config func(r RoleConfig) (name string, of agents.Settings)
	// run runs the process; nil: alone.
	run func(ctx context.Context, r RoleConfig) error
}

func roleNamed(name string) role {
	rows := table()
	return rows[slices.IndexFunc(rows, func(r role) bool { return r.name == name })]
}

// on reports whether a cluster with that configuration has the role.
func (r *role) on(cfg Config) bool {
	if r.node && !cfg.realNode() {
		return false
	}
	if r.choice != "" && slices.Contains(cfg.Without, r.choice) {
		return false
	}
	return r.when == nil || r.when(cfg)
}

// has reports whether a cluster with that configuration has the role of that name.
func (c Config) has(name string) bool {
	row := roleNamed(name)
	return row.on(c)
}

// waves are the rows selected by want, in start order: each wave starts when the one before is ready.
func waves(rows []role, want func(*role) bool) [][]role {
	depth := map[string]int{}
	var out [][]role
	for _, r := range rows { // table lists needs first
		if !want(&r) {
			continue
		}
		d := 0
		for _, n := range r.needs {
			if above, there := depth[n]; there {
				d = max(d, above+1)
			}
		}
		depth[r.name] = d
		for len(out) <= d {
			out = append(out, nil)
		}
		out[d] = append(out[d], r)
	}
	return out
}

// rightsOf are the rows that have a user, as their rights see them.
func rightsOf(rows []role) rights.Roles {
	var out rights.Roles
	for _, r := range rows {
		if r.user == nil {
			continue
		}
		out = append(out, rights.Role{
			Name:    r.name,
			User:    r.user(Config{}).Name,
			Alone:   r.file != "" && r.name != noderoles.KubeletName, // a kubelet is a node
			OnNode:  r.node,
			Account: r.account,
			Bound:   r.bound,
			Rules:   r.rules,
		})
	}
	return out
}

// stepsOf are the marks that roles may send, by their users.
func stepsOf(rows []role) map[string][]event.Step {
	out := map[string][]event.Step{}
	for _, r := range rows {
		if len(r.steps) == 0 {
			continue
		}
		out[r.user(Config{}).Name] = r.steps
		if r.account != "" {
			out[rights.AccountUser(r.account)] = r.steps
		}
	}
	return out
}

// WriteNodeRBAC writes, as YAML, what a node's roles need on an API server that is not Keelson's.
func WriteNodeRBAC(w io.Writer, node string) error { return rightsOf(table()).WriteNode(w, node) }

// Role describes a role that can be a process of its own.
type Role struct {
	Name, Short, Example string // the command
	row                  role
}

// Roles lists all of them.
func Roles() []Role {
	var out []Role
	for _, r := range table() {
		if r.word != "" {
			out = append(out, Role{
				Name:    r.word,
				Short:   r.short,
				Example: r.example,
				row:     r,
			})
		}
	}
	return out
}

// RunRole runs the role whose command is word in this process until ctx ends.
func RunRole(ctx context.Context, word string, cfg RoleConfig) error {
	for _, r := range Roles() {
		if r.Name == word {
			return r.Run(ctx, cfg)
		}
	}
	return fmt.Errorf("there is no role %q", word)
}

// Rows are the role's options; for the kubelet also those of the other roles of a node.
func (r Role) Rows(cfg *RoleConfig) []option.Row {
	var rows []option.Row
	if r.row.file != "" {
		rows = append(rows, option.New(&cfg.Kubeconfig, "kubeconfig", "",
			"how to reach the API server (default: pki/"+r.row.file+".kubeconfig in the data directory)"))
	}
	if r.row.rows != nil {
		rows = append(rows, r.row.rows(cfg)...)
	}
	if r.row.purge != nil && r.row.run == nil {
		rows = append(rows, option.New(&cfg.Cleanup, "cleanup", false,
			"remove what this role left in the kernel, and exit"))
	}
	for _, row := range table() {
		if row.name == r.row.name || r.row.name == noderoles.KubeletName && row.node {
			rows = append(rows, row.optionRows(&cfg.Options)...)
		}
	}
	return rows
}

// Run runs the role in this process until ctx ends.
func (r Role) Run(ctx context.Context, cfg RoleConfig) error {
	if r.row.run != nil {
		return r.row.run(ctx, cfg)
	}
	return r.row.alone(ctx, cfg)
}
