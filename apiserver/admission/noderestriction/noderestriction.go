// SPDX-License-Identifier: Apache-2.0

// Package noderestriction is the admission plugin NodeRestriction: what the credentials of a node may write. A file for
// each kind of write: addresses, names and labels of the Node, its pods, certificates and tokens, pod CIDRs. The rules
// for pod CIDRs and for the service accounts of node roles are our own: Kubernetes has none.
package noderestriction

import (
	"context"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/core/localvolume"
	"keelson/apiserver/admission"
	"keelson/auth"
)

// Plugin limits a kubelet to its own Node, its lease, the pods bound to it, and their certificates and tokens.
type Plugin struct {
	Reader admission.Reader
	// NodeName returns the node whose kubelet a user is.
	NodeName func(u *auth.User) (string, bool)
	// RoleAccounts are the service accounts in kube-system of node roles other than the kubelet. A node may request
	// their tokens, bound to itself.
	RoleAccounts []string
	// Authorizer decides whether a node may request a token for an audience that no volume of the pod has; nil: no.
	Authorizer auth.Authorizer
	// PodRanges are the pod CIDRs that nodes may set themselves.
	PodRanges PodRanges
}

// RemovedNode is an annotation of the user of a removed node, whose certificate was issued before: the time of the
// removal.
const RemovedNode = "keelson.dev/removed"

// notForRemoved are the resources with which a removed node could return.
var notForRemoved = []string{"nodes", "certificatesigningrequests", "serviceaccounts", "leases"}

// Name is the plugin's name.
func (Plugin) Name() string { return "NodeRestriction" }

// Validate checks writes of kubelets and of the other node roles; other users pass.
func (p Plugin) Validate(ctx context.Context, req *admission.Request) error {
	node, ok := p.NodeName(req.User)
	if !ok {
		return p.role(req)
	}
	if at := req.User.Annotations[RemovedNode]; at != "" && req.Operation == admission.Create &&
		slices.Contains(notForRemoved, req.Resource.Resource) {
		return admission.Forbidden(req,
			"node %q was removed from the cluster at %s: `keelson down --purge` on its machine, "+
				"then "+
				"let it join again with a token", node, at)
	}
	switch req.Resource.Resource {
	case "pods":
		return p.pod(ctx, req, node)
	case "nodes":
		if err := ownNode(req, node); err != nil {
			return err
		}
		if err := p.addresses(ctx, req, node); err != nil {
			return err
		}
		if err := p.key(ctx, req, node); err != nil {
			return err
		}
		return p.ranges(ctx, req, node)
	case "leases":
		return ownLease(req, node)
	case "serviceaccounts":
		return p.token(ctx, req, node)
	case "persistentvolumes":
		return ownVolume(req, node)
	case "persistentvolumeclaims":
		return claimStatus(req, node)
	case "podcertificaterequests":
		return p.certificate(ctx, req, node)
	case "csinodes":
		if nameOf(req) != node {
			return admission.Forbidden(req, "can only access CSINode with the same name as the requesting node")
		}
	case "resourceslices":
		return ownSlice(req, node)
	case "endpointslices":
		return ownNames(req, node)
	case "services":
		return namesService(req, node)
	case "certificatesigningrequests":
		return ownRequest(req, node)
	}
	return nil
}

// nameOf is the name of the written object; the name of a new object is only in the object.
func nameOf(r *admission.Request) string {
	if r.Operation == admission.Create && r.Subresource == "" {
		if o, err := meta.Accessor(r.Object); err == nil {
			return o.GetName()
		}
		return ""
	}
	return r.Name
}

func (p Plugin) pod(ctx context.Context, req *admission.Request, node string) error {
	switch {
	case req.Operation == admission.Create && req.Subresource == "":
		pod, err := admission.PodOf(req)
		if err != nil {
			return err
		}
		if !isMirror(pod) {
			return admission.Forbidden(req, "pod does not have %q annotation, node %q can only create mirror pods",
				corev1.MirrorPodAnnotationKey, node)
		}
		return p.mirror(ctx, req, pod, node)
	case req.Operation == admission.Update && req.Subresource != "status":
		return admission.Forbidden(req, "node %q cannot update pod", node)
	case req.Operation == admission.Create && req.Subresource != "eviction":
		return admission.Forbidden(req, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed",
			req.Subresource)
	case req.Operation == admission.Connect:
		return nil
	}
	old, ok := req.OldObject.(*corev1.Pod)
	if !ok {
		var err error
		if old, err = admission.Get[*corev1.Pod](ctx, p.Reader, admission.Pods, req.Namespace, req.Name); err != nil {
			return err
		}
	}
	if old.Spec.NodeName != node {
		return admission.Forbidden(req, "node %q can only %s pods with spec.nodeName set to itself", node,
			strings.ToLower(string(req.Operation)))
	}
	if req.Operation == admission.Update {
		return podStatus(req, old, node)
	}
	return nil
}

// ownVolume lets a kubelet remove its finalizer from a local volume that is being deleted, and change nothing else.
func ownVolume(req *admission.Request, node string) error {
	pv, ok := req.Object.(*corev1.PersistentVolume)
	old, had := req.OldObject.(*corev1.PersistentVolume)
	if req.Operation != admission.Update || req.Subresource != "" || !ok || !had {
		return admission.Forbidden(req, "node %q can only update its local volumes", node)
	}
	if !localvolume.On(old, node) || old.DeletionTimestamp == nil || old.Status.Phase == corev1.VolumeBound {
		return admission.Forbidden(req,
			"node %q can only update local volumes on it that are being deleted and have no claim",
			node)
	}
	want := old.DeepCopy()
	want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == localvolume.Finalizer })
	got := pv.DeepCopy()
	want.ManagedFields = nil
	got.ManagedFields = nil
	want.ResourceVersion = ""
	got.ResourceVersion = ""
	want.TypeMeta = metav1.TypeMeta{}
	got.TypeMeta = metav1.TypeMeta{}
	if !equality.Semantic.DeepEqual(want, got) {
		return admission.Forbidden(req, "node %q can only remove the finalizer %s of its local volumes", node,
			localvolume.Finalizer)
	}
	return nil
}

func ownLease(r *admission.Request, node string) error {
	if r.Namespace != corev1.NamespaceNodeLease {
		return admission.Forbidden(r, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if nameOf(r) != node {
		return admission.Forbidden(r, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

// token allows a kubelet only tokens bound to its pods, and tokens of its node's other roles bound to its Node.
func (p Plugin) token(ctx context.Context, req *admission.Request, node string) error {
	if req.Subresource != "token" || req.Operation != admission.Create {
		return nil
	}
	tr, ok := req.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return admission.Forbidden(req, "unexpected type %T", req.Object)
	}
	ref := tr.Spec.BoundObjectRef
	if p.roleToken(req, ref) {
		return p.nodeToken(ctx, req, tr, node)
	}
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return admission.Forbidden(req, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return admission.Forbidden(req, "node requested token with a pod binding without a uid")
	}
	pod, err := admission.Get[*corev1.Pod](ctx, p.Reader, admission.Pods, req.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if pod.UID != ref.UID {
		return admission.Forbidden(req,
			"the UID in the bound object reference (%s) does not match the UID in record. The "+
				"object "+
				"might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return admission.Forbidden(req, "node requested token bound to a pod scheduled on a different node")
	}
	return p.audience(ctx, req, tr, pod)
}
