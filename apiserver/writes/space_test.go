// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/auth"
	"keelson/store"
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
	const none, small, full = store.NoReserve, store.SmallReserve, store.FullReserve
	for _, c := range []struct {
		what                 string
		u                    *auth.User
		group, resource, sub string
		want                 store.Reserve
	}{
		{"nobody's", nil, "", "pods", "status", none},
		{"a tenant's lease", tenant, "coordination.k8s.io", "leases", "", none},
		{"a tenant's status", tenant, "", "pods", "status", none},
		{"a tenant's binding", tenant, "", "pods", "binding", none},
		{"an administrator's object", admin, "", "configmaps", "", none},
		{"an administrator's node", admin, "", "nodes", "", full},
		{"an administrator's lease", admin, "coordination.k8s.io", "leases", "", full},
		{"a node's lease", node, "coordination.k8s.io", "leases", "", full},
		{"a node's pod status", node, "", "pods", "status", full},
		{"a node's pod", node, "", "pods", "", none},
		{"a node's event", node, "", "events", "", store.LeaveRoom},
		{"a node", node, "", "nodes", "", full},
		{"what a controller makes for a tenant", manager, "", "pods", "", none},
		{"a controller's status", manager, "apps", "deployments", "status", full},
		{"a controller's slice", manager, "discovery.k8s.io", "endpointslices", "", small},
		{"a tenant's slice", tenant, "discovery.k8s.io", "endpointslices", "", none},
		{"a node's certificate", node, "certificates.k8s.io", "certificatesigningrequests", "", small},
		{"the server's objects", server, "rbac.authorization.k8s.io", "clusterroles", "", full},
	} {
		resource := schema.GroupResource{Group: c.group, Resource: c.resource}
		if got := reserveFor(c.u, resource, c.sub); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
