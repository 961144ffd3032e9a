// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/auth"
)

// ownerReferencesPermissionEnforcement requires the right to delete an object for a change of its owners, and the right
// to write an owner's finalizers to block its deletion. Off by default.
type ownerReferencesPermissionEnforcement struct {
	Authorizer auth.Authorizer
	// ResourceOf returns the resource of a kind.
	ResourceOf func(gvk schema.GroupVersionKind) (r schema.GroupVersionResource, namespaced, ok bool)
}

func (ownerReferencesPermissionEnforcement) Name() string {
	return "OwnerReferencesPermissionEnforcement"
}

// Validate checks writes that change owner references.
func (p ownerReferencesPermissionEnforcement) Validate(ctx context.Context, req *admission.Request) error {
	obj, ok := req.Object.(metav1.Object)
	if !ok || req.Operation != admission.Create && req.Operation != admission.Update || req.Subresource == "status" ||
		req.Resource.Resource == "pods" && req.Subresource != "" {
		return nil
	}
	var before []metav1.OwnerReference
	if old, ok := req.OldObject.(metav1.Object); ok {
		before = old.GetOwnerReferences()
	}
	if slices.EqualFunc(obj.GetOwnerReferences(), before, sameOwner) {
		return nil
	}
	if req.Operation == admission.Update &&
		!p.authorized(ctx, req, "delete", req.Resource, req.Subresource, req.Namespace, req.Name) {
		return admission.Forbidden(req, "cannot set an ownerRef on a resource you can't delete: , <nil>")
	}
	for _, ref := range obj.GetOwnerReferences() {
		if ref.BlockOwnerDeletion == nil || !*ref.BlockOwnerDeletion ||
			slices.ContainsFunc(before, func(o metav1.OwnerReference) bool { return sameOwner(o, ref) }) {
			continue
		}
		gvr, namespaced, ok := p.ResourceOf(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
		if !ok {
			return admission.Forbidden(req,
				"cannot set blockOwnerDeletion in this case because cannot find RESTMapping for "+
					"APIVersion %s Kind %s", ref.APIVersion, ref.Kind)
		}
		ns := ""
		if namespaced {
			ns = req.Namespace
		}
		if !p.authorized(ctx, req, "update", gvr, "finalizers", ns, ref.Name) {
			return admission.Forbidden(req,
				"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't "+
					"set finalizers on: , <nil>")
		}
	}
	return nil
}

func (p ownerReferencesPermissionEnforcement) authorized(
	ctx context.Context, r *admission.Request, verb string, gvr schema.GroupVersionResource, sub, ns, name string,
) bool {
	decision, err := p.Authorizer.Authorize(ctx, &auth.Attributes{
		User:            r.User,
		Verb:            verb,
		Group:           gvr.Group,
		Version:         gvr.Version,
		Resource:        gvr.Resource,
		Subresource:     sub,
		Namespace:       ns,
		Name:            name,
		ResourceRequest: true,
	})
	return err == nil && decision.Verdict == auth.Allow
}

func sameOwner(a, b metav1.OwnerReference) bool {
	blocks := func(o metav1.OwnerReference) bool { return o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion }
	return a.UID == b.UID && a.Kind == b.Kind && a.Name == b.Name && a.APIVersion == b.APIVersion &&
		blocks(a) == blocks(b)
}
