// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
)

const dnsService = "kube-dns"

// ownNames lets a node with a DNS server write its own EndpointSlices of the Service kube-dns, one per IP family, and
// no others.
func ownNames(req *admission.Request, node string) error {
	name := nameOf(req)
	if req.Namespace != metav1.NamespaceSystem || name != sliceOfNames(dnsService, node) && name != sliceOfNames(
		dnsService+"6", node) {
		return admission.Forbidden(req, "node %q can only %s its own endpoint slice of the service %s", node,
			strings.ToLower(string(req.Operation)), dnsService)
	}
	if req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	s, ok := req.Object.(*discoveryv1.EndpointSlice)
	if !ok {
		return admission.Forbidden(req, "unexpected type %T", req.Object)
	}
	if s.Labels[discoveryv1.LabelServiceName] != dnsService {
		return admission.Forbidden(req, "node %q can only write endpoint slices of the service %s", node, dnsService)
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.NodeName == nil || *e.NodeName != node || e.Hostname != nil {
			return admission.Forbidden(req, "node %q can only write endpoints that are on it", node)
		}
	}
	return nil
}

// sliceOfNames is the slice's name, as dns.publisher creates it.
func sliceOfNames(prefix, node string) string {
	name := prefix + "-" + node
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(node))
		name = name[:180] + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// namesService lets a node create the missing Service kube-dns, and no other.
func namesService(r *admission.Request, node string) error {
	s, ok := r.Object.(*corev1.Service)
	if r.Operation != admission.Create || r.Subresource != "" || !ok || r.Namespace != metav1.NamespaceSystem ||
		s.Name != dnsService {
		return admission.Forbidden(r, "node %q can only create the service %s", node, dnsService)
	}
	plain := s.Spec.Type == "" || s.Spec.Type == corev1.ServiceTypeClusterIP
	if !plain || len(s.Spec.Selector) > 0 || len(s.Spec.ExternalIPs) > 0 || s.Spec.ExternalName != "" {
		return admission.Forbidden(r,
			"node %q can only create the service %s with a cluster address alone", node, dnsService)
	}
	return nil
}
