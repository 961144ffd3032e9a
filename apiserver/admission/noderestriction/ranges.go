// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission"
)

// PodRanges says which pod CIDRs a node may set itself. Other nodes route them to the node, and no other node gets
// them.
type PodRanges struct {
	// Cluster are the cluster CIDRs; none: unknown here.
	Cluster []netip.Prefix
	// Bits4 and Bits6 are the prefix lengths of nodes' pod CIDRs; 0: 24 and 64.
	Bits4, Bits6 int
	// Reserved are ranges for no node: the service CIDRs.
	Reserved []netip.Prefix
	// OwnCIDRs are the pod CIDRs of the node in the server's process, which keeps them when Cluster changes.
	OwnCIDRs []netip.Prefix
}

// Minimum prefix lengths if the cluster CIDRs are unknown.
const (
	minPrefixLength4 = 16
	minPrefixLength6 = 48
)

// minPrefixLength is the minimum prefix length of a node's range in the family.
func (p PodRanges) minPrefixLength(four bool) int {
	bits := p.Bits6
	usual := 64
	unknown := minPrefixLength6
	if four {
		bits = p.Bits4
		usual = 24
		unknown = minPrefixLength4
	}
	switch {
	case len(p.Cluster) == 0:
		return unknown
	case bits == 0:
		return usual
	}
	return bits
}

// ranges checks the pod CIDRs that a node sets. Validation makes them immutable. In Kubernetes a node may set any.
func (p Plugin) ranges(ctx context.Context, req *admission.Request, node string) error {
	obj, ok := req.Object.(*corev1.Node)
	if !ok || req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	old, _ := req.OldObject.(*corev1.Node)
	if old != nil && len(old.Spec.PodCIDRs) > 0 {
		return nil // they are immutable
	}
	var requested []netip.Prefix
	for _, text := range obj.Spec.PodCIDRs {
		q, err := netip.ParsePrefix(text)
		if err != nil {
			return nil //nolint:nilerr // validation rejects it
		}
		if why := p.PodRanges.rejectReason(q); why != "" {
			return admission.Forbidden(req,
				"node %q is not allowed to set the pod CIDR %s: %s. Without one, the cluster "+
					"allocates one: keelson down on its machine and start it again, without pods", node, q, why)
		}
		requested = append(requested, q)
	}
	if len(requested) == 0 || old == nil {
		return nil // of nodes with the same range the oldest keeps it, and this one is the newest
	}
	return p.requireUnused(ctx, req, node, requested)
}

// rejectReason is why a node may not set the range; empty: it may.
func (p PodRanges) rejectReason(prefix netip.Prefix) string {
	if slices.Contains(p.OwnCIDRs, prefix) {
		return ""
	}
	if len(p.Cluster) > 0 && !slices.ContainsFunc(p.Cluster, func(c netip.Prefix) bool {
		return c.Overlaps(prefix) && c.Bits() <= prefix.Bits()
	}) {
		return "it is not within the cluster's ranges (--cluster-cidr)"
	}
	if prefix.Bits() < p.minPrefixLength(prefix.Addr().Is4()) {
		return "it is larger than a node's range (--node-cidr-mask-size-ipv4, -ipv6)"
	}
	for _, s := range p.Reserved {
		if s.Overlaps(prefix) {
			return "it overlaps the Service CIDR " + s.String()
		}
	}
	return ""
}

// requireUnused requires ranges that no other node has. It is for an existing Node without ranges, which may be older
// than the node with the same range and would keep it.
func (p Plugin) requireUnused(ctx context.Context, r *admission.Request, node string, requested []netip.Prefix) error {
	others, err := admission.List[*corev1.Node](ctx, p.Reader, admission.Nodes, "")
	if err != nil {
		return err
	}
	for _, o := range others {
		for _, text := range o.Spec.PodCIDRs {
			q, err := netip.ParsePrefix(text)
			if err == nil && o.Name != node && slices.ContainsFunc(requested, q.Overlaps) {
				return admission.Forbidden(r,
					"node %q is not allowed to set a pod CIDR that overlaps %s of node %q", node, q,
					o.Name)
			}
		}
	}
	return nil
}
