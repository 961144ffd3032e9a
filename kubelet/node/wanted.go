// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Wanted is what the kubelet is configured to say of its node in the Node object.
type Wanted struct {
	Hostname string
	IPs      []string // InternalIP addresses
	PodCIDRs []string
	Labels   map[string]string
	// Annotations are those that the kubelet owns on the Node object. An empty value removes the annotation of an
	// earlier run.
	Annotations map[string]string
	Taints      []corev1.Taint
}

// object returns a new Node object without a status.
func (w *Wanted) object(name, arch string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			corev1.LabelHostname:      w.Hostname,
			corev1.LabelOSStable:      "linux",
			corev1.LabelArchStable:    arch,
			"beta.kubernetes.io/os":   "linux",
			"beta.kubernetes.io/arch": arch,
		},
	}}
	maps.Copy(node.Labels, w.Labels)
	node.Annotations = maps.Clone(w.Annotations)
	maps.DeleteFunc(node.Annotations, func(_, value string) bool { return value == "" })
	node.Spec.Taints = w.Taints
	if len(w.PodCIDRs) > 0 {
		node.Spec.PodCIDR = w.PodCIDRs[0]
		node.Spec.PodCIDRs = w.PodCIDRs
	}
	return node
}

// takeOver returns a copy of have, which an earlier run created, with labels, annotations and pod CIDRs of want.
func (w *Wanted) takeOver(have, want *corev1.Node) *corev1.Node {
	next := have.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
	if next.Annotations == nil && len(want.Annotations) > 0 {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, want.Annotations)
	for key, value := range w.Annotations {
		if value == "" {
			delete(next.Annotations, key)
		}
	}
	if next.Spec.PodCIDR == "" {
		next.Spec.PodCIDR = want.Spec.PodCIDR
		next.Spec.PodCIDRs = want.Spec.PodCIDRs
	}
	return next
}

// addresses are the node's addresses in its status.
func (w *Wanted) addresses() []corev1.NodeAddress {
	var out []corev1.NodeAddress
	for _, ip := range w.IPs {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: w.Hostname})
}
