// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/auth"
	"keelson/store"
)

// Above the store's quota, what would take more room is refused. A full cluster must keep running and become smaller
// again, so some writes may use more: deletions and evictions always (they add a few bytes, once for each object), and
// of the cluster's own components, by their identities, leases, status, bindings, and what a kubelet registers of its
// node. What components derive from the objects of tenants has a bounded reserve: a tenant decides how much it is. No
// tenant has these identities, so that a Role with all verbs on all resources of a namespace gives no way around the
// quota.

// serverName is the server's own identity.
const serverName = "system:apiserver"

// nodeResources are what a kubelet registers of its node, and what controllers and administrators then change: ranges,
// taints, cordons.
var nodeResources = []string{"nodes", "csinodes"}

// derived are what components make so that pods that exist run on and are reached: their addresses, their volumes,
// their certificates, and those of nodes. Pods themselves are not among them.
var derived = []schema.GroupResource{
	{Group: "discovery.k8s.io", Resource: "endpointslices"},
	{Resource: "endpoints"},
	{Resource: "persistentvolumes"},
	{Resource: "persistentvolumeclaims"},
	{Group: "storage.k8s.io", Resource: "volumeattachments"},
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
}

// WithReserve returns ctx for a write of rq to a resource, or to its subresource sub, with the room above the quota
// that the write may take.
func WithReserve(ctx context.Context, rq *pipeline.Request, res *resources.Resource, sub string) context.Context {
	return store.UseReserve(ctx, reserveFor(rq.User, res.GroupResource(), sub))
}

func reserveFor(user *auth.User, resource schema.GroupResource, sub string) store.Reserve {
	switch {
	case resource.Resource == "events": // of both groups
		return store.LeaveRoom // else they would take the room that deletions give
	case user == nil:
		return store.NoReserve
	case user.Name == serverName:
		return store.FullReserve // what it makes at each start, of which there is one
	case !ofControlPlane(user):
		return store.NoReserve
	case resource.Group == "coordination.k8s.io" && resource.Resource == "leases",
		sub == "status", sub == "binding", sub == "finalize", sub == "approval",
		sub == "" && slices.Contains(nodeResources, resource.Resource): // taints, ranges, cordons: there are few nodes
		return store.FullReserve
	case sub == "" && slices.Contains(derived, resource):
		return store.SmallReserve
	}
	return store.NoReserve
}

// ofControlPlane reports whether u is a node, a component or an administrator.
func ofControlPlane(u *auth.User) bool {
	return slices.Contains(u.Groups, auth.Masters) || slices.Contains(u.Groups, auth.Nodes) ||
		strings.HasPrefix(u.Name, "system:kube-") ||
		strings.HasPrefix(u.Name, "system:serviceaccount:kube-system:")
}

// lessRoom changes an updated object that the store refused with err to one that takes less room. It reports false if
// there is none.
func lessRoom(err error, c Change, base, last kind.Object) bool {
	switch {
	case errors.Is(err, store.ErrTooLarge) && !c.Applied:
		last.SetManagedFields(nil)
		return true
	case errors.Is(err, store.ErrNoSpace) && base != nil &&
		(!c.Applied || len(last.GetFinalizers()) < len(base.GetFinalizers())):
		// a new entry could take more than the change gives back: a scale to 0, the removal of a finalizer
		last.SetManagedFields(base.GetManagedFields())
		return true
	}
	return false
}
