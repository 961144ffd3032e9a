// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"keelson/auth"
)

// NodeRestriction keeps a kubelet to its own node object, its own lease, the pods bound to it and their certificates.
type NodeRestriction struct {
	Reader Reader
	// NodeName tells whose kubelet a user is.
	NodeName func(u *auth.User) (string, bool)
}

// Name is the plugin's name.
func (NodeRestriction) Name() string { return "NodeRestriction" }

// Validate judges writes by kubelets; others pass.
func (p NodeRestriction) Validate(ctx context.Context, r *Request) error {
	node, ok := p.NodeName(r.User)
	if !ok {
		return nil
	}
	switch r.Resource.Resource {
	case "pods":
		return p.pod(ctx, r, node)
	case "nodes":
		return ownNode(r, node)
	case "leases":
		return ownLease(r, node)
	case "serviceaccounts":
		return p.token(ctx, r, node)
	case "persistentvolumeclaims":
		return claimStatus(r, node)
	case "podcertificaterequests":
		return p.certificate(ctx, r, node)
	case "csinodes":
		if r.Name != node {
			return Forbidden(r, "can only access CSINode with the same name as the requesting node")
		}
	}
	return nil
}

func (p NodeRestriction) pod(ctx context.Context, r *Request, node string) error {
	switch {
	case r.Operation == Create && r.Subresource == "":
		pod, err := podOf(r)
		if err != nil {
			return err
		}
		if !isMirror(pod) {
			return Forbidden(r, "pod does not have %q annotation, node %q can only create mirror pods", mirrorAnnotation, node)
		}
		return p.mirror(ctx, r, pod, node)
	case r.Operation == Update && r.Subresource != "status":
		return Forbidden(r, "node %q cannot update pod", node)
	case r.Operation == Create && r.Subresource != "eviction":
		return Forbidden(r, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", r.Subresource)
	case r.Operation == Connect:
		return nil
	}
	old, ok := r.OldObject.(*corev1.Pod)
	if !ok {
		var err error
		if old, err = get[*corev1.Pod](ctx, p.Reader, pods, r.Namespace, r.Name); err != nil {
			return err
		}
	}
	if old.Spec.NodeName != node {
		return Forbidden(r, "node %q can only %s pods with spec.nodeName set to itself", node, strings.ToLower(string(r.Operation)))
	}
	if r.Operation == Update {
		return podStatus(r, old, node)
	}
	return nil
}

func ownNode(r *Request, node string) error {
	if r.Name != node && r.Name != "" {
		return Forbidden(r, "node %q is not allowed to modify node %q", node, r.Name)
	}
	if obj, ok := r.Object.(*corev1.Node); ok && obj.Name != node {
		return Forbidden(r, "node %q is not allowed to modify node %q", node, obj.Name)
	}
	obj, ok := r.Object.(*corev1.Node)
	old, had := r.OldObject.(*corev1.Node)
	if !ok || r.Subresource != "" {
		return nil
	}
	if r.Operation == Create {
		if labels := reserved(obj.Labels, nil); len(labels) > 0 {
			return Forbidden(r, "node %q is not allowed to set the following labels: %s", node, strings.Join(labels, ", "))
		}
		return nil
	}
	switch {
	case r.Operation != Update || !had:
	case taintsDiffer(obj.Spec.Taints, old.Spec.Taints):
		return Forbidden(r, "node %q is not allowed to modify taints", node)
	case !apiequality.Semantic.DeepEqual(obj.OwnerReferences, old.OwnerReferences):
		return Forbidden(r, "node %q is not allowed to modify ownerReferences", node)
	default:
		if labels := reserved(obj.Labels, old.Labels); len(labels) > 0 {
			return Forbidden(r, "is not allowed to modify labels: %s", strings.Join(labels, ", "))
		}
	}
	return nil
}

// kubeletLabels of Kubernetes' own domains are the kubelet's to set.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// reserved are the changed labels that say something about the node which others rely on, sorted.
func reserved(labels, old map[string]string) []string {
	var out []string
	check := func(from, other map[string]string) {
		for key, value := range from {
			if v, ok := other[key]; (!ok || v != value) && !slices.Contains(out, key) && !kubeletMayLabel(key) {
				out = append(out, key)
			}
		}
	}
	check(labels, old)
	check(old, labels)
	slices.Sort(out)
	return out
}

func kubeletMayLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	in := func(d string) bool { return ok && (domain == d || strings.HasSuffix(domain, "."+d)) }
	switch {
	case in(corev1.LabelNamespaceNodeRestriction):
		return false
	case slices.Contains(kubeletLabels, key), in("kubelet.kubernetes.io"), in("node.kubernetes.io"):
		return true
	}
	return !in("kubernetes.io") && !in("k8s.io")
}

func taintsDiffer(a, b []corev1.Taint) bool {
	if len(a) != len(b) {
		return true
	}
	for i := range a {
		if a[i].Key != b[i].Key || a[i].Value != b[i].Value || a[i].Effect != b[i].Effect {
			return true
		}
	}
	return false
}

func ownLease(r *Request, node string) error {
	if r.Namespace != corev1.NamespaceNodeLease {
		return Forbidden(r, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if r.Name != "" && r.Name != node {
		return Forbidden(r, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

// token lets a kubelet ask only for tokens bound to its own pods.
func (p NodeRestriction) token(ctx context.Context, r *Request, node string) error {
	if r.Subresource != "token" || r.Operation != Create {
		return nil
	}
	tr, ok := r.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return Forbidden(r, "unexpected type %T", r.Object)
	}
	ref := tr.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return Forbidden(r, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return Forbidden(r, "node requested token with a pod binding without a uid")
	}
	pod, err := get[*corev1.Pod](ctx, p.Reader, pods, r.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if pod.UID != ref.UID {
		return Forbidden(r, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return Forbidden(r, "node requested token bound to a pod scheduled on a different node")
	}
	return nil
}
