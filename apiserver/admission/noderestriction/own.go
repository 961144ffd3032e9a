// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"keelson/apiserver/admission"
	"keelson/pki"
)

// ownNode limits a kubelet to its own Node in every subresource: labels and owners of a Node can be set through the
// status too.
func ownNode(req *admission.Request, node string) error {
	if name := nameOf(req); name != node {
		return admission.Forbidden(req, "node %q is not allowed to modify node %q", node, name)
	}
	if req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	obj, ok := req.Object.(*corev1.Node)
	if !ok {
		return admission.Forbidden(req, "unexpected type %T", req.Object)
	}
	if req.Operation == admission.Create {
		if obj.Spec.ConfigSource != nil {
			return admission.Forbidden(req, "node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if labels := reserved(obj.Labels, nil); len(labels) > 0 {
			return admission.Forbidden(req, "node %q is not allowed to set the following labels: %s", node,
				strings.Join(labels, ", "))
		}
		return nil
	}
	old, ok := req.OldObject.(*corev1.Node)
	same := apiequality.Semantic.DeepEqual
	switch {
	case !ok:
		return admission.Forbidden(req, "unexpected type %T", req.OldObject)
	case obj.Spec.ConfigSource != nil && !same(obj.Spec.ConfigSource, old.Spec.ConfigSource):
		return admission.Forbidden(req,
			"node %q is not allowed to update configSource to a new non-nil configSource", node)
	case !same(obj.Spec.Taints, old.Spec.Taints):
		return admission.Forbidden(req, "node %q is not allowed to modify taints", node)
	case !same(obj.OwnerReferences, old.OwnerReferences):
		return admission.Forbidden(req, "node %q is not allowed to modify ownerReferences", node)
	}
	if labels := reserved(obj.Labels, old.Labels); len(labels) > 0 {
		return admission.Forbidden(req, "is not allowed to modify labels: %s", strings.Join(labels, ", "))
	}
	return nil
}

// kubeletLabels are the labels in Kubernetes' domains that a kubelet may set.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// reserved are the changed labels that kubelets must not set, sorted.
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

// ownSlice limits a node to ResourceSlices of its own devices. For an update, the authorizer has checked the old
// object, and the node name is immutable.
func ownSlice(req *admission.Request, node string) error {
	obj := req.Object
	verb := "create"
	switch req.Operation {
	case admission.Create:
	case admission.Delete:
		obj = req.OldObject
		verb = "delete"
	default:
		return nil
	}
	s, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return admission.Forbidden(req, "unexpected type %T", obj)
	}
	if s.Spec.NodeName == nil || *s.Spec.NodeName != node {
		return admission.Forbidden(req, "can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

// ownRequest requires the node's own name in its requests for kubelet certificates.
func ownRequest(r *admission.Request, node string) error {
	if r.Operation != admission.Create || r.Subresource != "" {
		return nil
	}
	csr, ok := r.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return admission.Forbidden(r, "unexpected type %T", r.Object)
	}
	if s := csr.Spec.SignerName; s != certificatesv1.KubeletServingSignerName &&
		s != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err != nil {
		return admission.Forbidden(r, "unable to parse csr: %v", err)
	}
	if req.Subject.CommonName != "system:node:"+node {
		return admission.Forbidden(r, "can only create a node CSR with CN=system:node:%s", node)
	}
	return nil
}
