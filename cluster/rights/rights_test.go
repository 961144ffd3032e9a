// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/auth"
)

// TestGrants: a role's user gets its rules, and so does its account; nodes get the right to ask for tokens of the
// accounts, and nothing else.
func TestGrants(t *testing.T) {
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}}}
	got := Roles{
		{
			Name:    "proxy",
			User:    "system:kube-proxy",
			OnNode:  true,
			Account: "keelson-proxy",
			Bound:   "system:node-proxier",
		},
		{Name: "dns", User: AccountUser("keelson-dns"), Account: "keelson-dns", Rules: rules},
		{Name: "scheduler", User: "system:kube-scheduler"},
	}.Objects()
	var text []string
	for _, obj := range got {
		switch o := obj.(type) {
		case *rbacv1.ClusterRole:
			text = append(text, "role "+o.Name)
		case *rbacv1.ClusterRoleBinding:
			line := o.Name + " -> " + o.RoleRef.Name + ":"
			for _, s := range o.Subjects {
				line += " " + s.Kind + " " + s.Name
			}
			text = append(text, line)
		case *corev1.ServiceAccount:
			text = append(text, "account "+o.Name)
		case *rbacv1.Role:
			text = append(text, fmt.Sprintf("%s %v %v %v", o.Name, o.Rules[0].Verbs, o.Rules[0].Resources,
				o.Rules[0].ResourceNames))
		case *rbacv1.RoleBinding:
			text = append(text, o.Name+" -> "+o.RoleRef.Name+": "+o.Subjects[0].Kind+" "+o.Subjects[0].Name)
		}
	}
	want := []string{
		"keelson:proxy -> system:node-proxier: User system:kube-proxy ServiceAccount keelson-proxy",
		"role keelson:dns", "keelson:dns -> keelson:dns: User system:serviceaccount:kube-system:keelson-dns",
		"keelson:servers [get list watch] [endpoints] [kubernetes]",
		"keelson:servers -> keelson:servers: Group " + auth.Nodes,
		"account keelson-dns", "account keelson-proxy",
		"keelson:node-roles [create] [serviceaccounts/token] [keelson-dns keelson-proxy]",
		"keelson:node-roles -> keelson:node-roles: Group " + auth.Nodes,
	}
	if !slices.Equal(text, want) {
		t.Errorf("got %q\nwant %q", text, want)
	}
}
