// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"keelson/auth"
	"keelson/lib/mark"
	"keelson/lib/run"
)

// role is one part of a cluster: a row of table. What is not filled in it does not have.
type role struct {
	// name is how progress, errors and needs call it.
	name string
	// needs are the roles that must be ready before it starts, where they are in the same process.
	needs []string
	// node roles belong to a real node: they run beside its kubelet, in `keelson up` and in `keelson kubelet`.
	node bool
	// in tells whether a cluster of that configuration has it; nil: each has. Node roles need not ask for a real node.
	in func(Config) bool
	// choice makes the role one that users can switch off, by the flag --CHOICE=none.
	choice string
	roleIdentity
	// make builds it. A nil Func: there is nothing to do.
	make func(*site) (run.Func, error)
	// purge removes what it had in the kernel, after its process has ended: `keelson down` calls it. Nothing there is no error.
	purge func(ctx context.Context, dir DataDir) error
	// options are its flags wherever it runs.
	options func(fl *pflag.FlagSet, o *Options)
	roleCommand
}

// roleIdentity is the user as whom a role works.
type roleIdentity struct {
	user func(Config) *auth.User
	// agent names it in the server's log.
	agent string
	// file.kubeconfig below pki/ is its way to the server from a process of its own.
	file string
	// account is the service account of kube-system as which it works beside a kubelet of its own process (nodeAccounts).
	account string
	// bound is a cluster role of Kubernetes that the user and the account get; rules are what they may do otherwise, as the
	// cluster role keelson:NAME. Neither: Kubernetes has bound the user already.
	bound string
	rules []rbacv1.PolicyRule
	// steps are the marks that it may send.
	steps []mark.Step
}

// roleCommand is a role as a process of its own.
type roleCommand struct {
	word, short string
	// example is how it is typed, for its help.
	example string
	// flags are those that it has in this process only, beside options.
	flags func(fl *pflag.FlagSet, r *RoleConfig)
	// prepare sets what a file that a flag names says; nil: there is none.
	prepare func(r *RoleConfig) error
	// metrics are those of the role itself; nil: it has none.
	metrics func() []prometheus.Collector
	// config is what it was started with, and the name under which it tells of that; nil: it does not.
	config func(r RoleConfig) (name string, of settings)
	// run is the process's life; nil: alone.
	run func(ctx context.Context, r RoleConfig) error
}

// on tells whether a cluster of that configuration has the role.
func (r *role) on(cfg Config) bool {
	switch {
	case r.node && !cfg.realNode(), r.choice != "" && slices.Contains(cfg.Without, r.choice):
		return false
	}
	return r.in == nil || r.in(cfg)
}

// realNode tells whether this machine is a node.
func (c Config) realNode() bool { return !c.Rootless && !c.NoNode }

// waves are the rows that want takes, in the order in which they start: each wave once the one before is ready.
func waves(rows []role, want func(*role) bool) [][]role {
	depth := map[string]int{}
	var out [][]role
	for _, r := range rows { // needs stand above
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

// grants are what the roles' users get beside what Kubernetes gives them.
func grants(rows []role) []runtime.Object {
	var out []runtime.Object
	for i := range rows {
		r := &rows[i]
		name := r.bound
		if len(r.rules) > 0 {
			name = "keelson:" + r.name
			out = append(out, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "true"}}, Rules: r.rules})
		}
		if name == "" {
			continue
		}
		b := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "keelson:" + r.name, Annotations: map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "true"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: r.user(Config{}).Name}},
		}
		if r.account != "" {
			if as := accountUser(r.account); as != r.user(Config{}).Name {
				b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: r.account})
			}
		}
		out = append(out, b)
	}
	return append(out, nodeAccountObjects(rows)...)
}

// Role describes a role that can be a process of its own.
type Role struct {
	Name, Short, Example string // the command
	row                  role
}

// Roles are all of them.
func Roles() []Role {
	var out []Role
	for _, r := range table() {
		if r.word != "" {
			out = append(out, Role{Name: r.word, Short: r.short, Example: r.example, row: r})
		}
	}
	return out
}

// RunRole runs the role whose command is word as this process, until ctx ends.
func RunRole(ctx context.Context, word string, cfg RoleConfig) error {
	for _, r := range Roles() {
		if r.Name == word {
			return r.Run(ctx, cfg)
		}
	}
	return fmt.Errorf("there is no role %q", word)
}

// AddFlags adds the role's flags, and for a kubelet those of the other roles of a node.
func (r Role) AddFlags(fl *pflag.FlagSet, cfg *RoleConfig) {
	if r.row.file != "" {
		fl.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "how to reach the API server (default: pki/"+r.row.file+".kubeconfig in the data directory)")
	}
	if r.row.flags != nil {
		r.row.flags(fl, cfg)
	}
	if r.row.purge != nil && r.row.run == nil {
		fl.BoolVar(&cfg.Cleanup, "cleanup", false, "remove what this role left in the kernel, and exit")
	}
	for _, row := range table() {
		if row.name == r.row.name || r.row.name == kubeletRole && row.node {
			row.addOptions(fl, &cfg.Options)
		}
	}
}

// Run runs the role as this process, until ctx ends.
func (r Role) Run(ctx context.Context, cfg RoleConfig) error {
	if r.row.run != nil {
		return r.row.run(ctx, cfg)
	}
	return r.row.alone(ctx, cfg)
}
