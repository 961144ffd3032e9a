// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"slices"
	"strings"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/registry"
	"keelson/auth"
	"keelson/store"
)

// Above the store's quota, what would take more room is refused. A full cluster must keep running and become smaller
// again, so some writes may use more: deletions and evictions always (they add a few bytes, once for each object), and
// of the cluster's own components, by their identities, leases, status, bindings, and what a kubelet registers of its
// node. No tenant has these identities, so that a Role with all verbs on all resources of a namespace gives no way
// around the quota.

// serverName is the server's own identity.
const serverName = "system:apiserver"

// nodeResources are what a kubelet registers of its node, and what controllers and administrators then change: ranges,
// taints, cordons.
var nodeResources = []string{"nodes", "csinodes"}

// withReserve returns ctx for a write of rq to a resource, or to its subresource sub, which may use the reserve if the
// write is such a one.
func withReserve(ctx context.Context, rq *pipeline.Request, res *registry.Resource, sub string) context.Context {
	if mayUseReserve(rq.User, res.Group, res.Resource, sub) {
		return store.UseReserve(ctx)
	}
	return ctx
}

func mayUseReserve(user *auth.User, group, resource, sub string) bool {
	switch {
	case user == nil:
		return false
	case user.Name == serverName:
		return true // what it makes at each start, of which there is one
	case !ofControlPlane(user):
		return false
	case group == "coordination.k8s.io" && resource == "leases":
		return true
	case sub == "":
		return slices.Contains(nodeResources, resource) // taints and ranges of nodes, cordons: there are few nodes
	}
	return sub == "status" || sub == "binding" || sub == "finalize" || sub == "approval"
}

// ofControlPlane reports whether u is a node, a component or an administrator.
func ofControlPlane(u *auth.User) bool {
	return slices.Contains(u.Groups, auth.Masters) || slices.Contains(u.Groups, auth.Nodes) ||
		strings.HasPrefix(u.Name, "system:kube-") ||
		strings.HasPrefix(u.Name, "system:serviceaccount:kube-system:")
}

// lessRoom changes an updated object that the store refused with err to one that takes less room. It reports false if
// there is none.
func lessRoom(err error, c change, base, last kind.Object) bool {
	switch {
	case errors.Is(err, store.ErrTooLarge) && !c.applied:
		last.SetManagedFields(nil)
		return true
	case errors.Is(err, store.ErrNoSpace) && base != nil &&
		(!c.applied || len(last.GetFinalizers()) < len(base.GetFinalizers())):
		// a new entry could take more than the change gives back: a scale to 0, the removal of a finalizer
		last.SetManagedFields(base.GetManagedFields())
		return true
	}
	return false
}
