// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"testing"

	"keelson/auth"
)

// TestReserveIsNotForTenants: which writes go on above the store's quota, by whom.
func TestReserveIsNotForTenants(t *testing.T) {
	tenant := &auth.User{
		Name:   "system:serviceaccount:team:default",
		Groups: []string{"system:serviceaccounts", auth.Authenticated},
	}
	admin := &auth.User{Name: "kubernetes-admin", Groups: []string{auth.Masters, auth.Authenticated}}
	node := &auth.User{Name: "system:node:a", Groups: []string{auth.Nodes, auth.Authenticated}}
	manager := &auth.User{Name: "system:kube-controller-manager", Groups: []string{auth.Authenticated}}
	server := &auth.User{Name: serverName}
	for _, c := range []struct {
		what                 string
		u                    *auth.User
		group, resource, sub string
		want                 bool
	}{
		{"nobody's", nil, "", "pods", "status", false},
		{"a tenant's lease", tenant, "coordination.k8s.io", "leases", "", false},
		{"a tenant's status", tenant, "", "pods", "status", false},
		{"a tenant's binding", tenant, "", "pods", "binding", false},
		{"an administrator's object", admin, "", "configmaps", "", false},
		{"an administrator's node", admin, "", "nodes", "", true},
		{"an administrator's lease", admin, "coordination.k8s.io", "leases", "", true},
		{"a node's lease", node, "coordination.k8s.io", "leases", "", true},
		{"a node's pod status", node, "", "pods", "status", true},
		{"a node's pod", node, "", "pods", "", false},
		{"a node's event", node, "", "events", "", false},
		{"a node", node, "", "nodes", "", true},
		{"what a controller makes for a tenant", manager, "", "pods", "", false},
		{"a controller's status", manager, "apps", "deployments", "status", true},
		{"a controller's slice", manager, "discovery.k8s.io", "endpointslices", "", false},
		{"the server's objects", server, "rbac.authorization.k8s.io", "clusterroles", "", true},
	} {
		if got := mayUseReserve(c.u, c.group, c.resource, c.sub); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
