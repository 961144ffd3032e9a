// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/networking/wireguard"
	"keelson/apiserver/admission"
	"keelson/lib/dial"
)

// maxNodeAddresses is the maximum number of a node's addresses, which load balancers and the routes of all other nodes
// repeat.
const maxNodeAddresses = 64

// key refuses a WireGuard key that another node has. Of two nodes with one key the older is reached: a node could cut
// off younger ones, whose keys it can read.
func (p Plugin) key(ctx context.Context, req *admission.Request, node string) error {
	obj, ok := req.Object.(*corev1.Node)
	if !ok || req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	key, _, ok := wireguard.End(obj)
	if !ok {
		return nil
	}
	if old, had := req.OldObject.(*corev1.Node); had {
		if was, _, ok := wireguard.End(old); ok && was == key {
			return nil
		}
	}
	others, err := admission.List[*corev1.Node](ctx, p.Reader, admission.Nodes, "")
	if err != nil {
		return err
	}
	for _, o := range others {
		if has, _, ok := wireguard.End(o); ok && has == key && o.Name != node {
			return admission.Forbidden(req,
				"node %q is not allowed to have the WireGuard key of node %q: if its machine is a "+
					"copy, delete wireguard.key in its data directory", node, o.Name)
		}
	}
	return nil
}

// addresses checks the addresses that a node brings. Controllers and other nodes use them: load balancers show them,
// routes lead to them, and a node whose pod range contains one is not routed to. In Kubernetes a node may write any.
func (p Plugin) addresses(ctx context.Context, req *admission.Request, node string) error {
	obj, ok := req.Object.(*corev1.Node)
	if !ok || req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	var before []corev1.NodeAddress
	if old, _ := req.OldObject.(*corev1.Node); old != nil {
		before = old.Status.Addresses
	}
	if len(obj.Status.Addresses) > max(maxNodeAddresses, len(before)) {
		return admission.Forbidden(req, "node %q has %d addresses, and may have %d", node, len(obj.Status.Addresses),
			maxNodeAddresses)
	}
	var brought []netip.Addr
	for _, a := range obj.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP ||
			slices.Contains(before, a) {
			continue
		}
		why := dial.Special(ip)
		if why == "" && (ip.Is4In6() || ip.Zone() != "") {
			why = "an IPv4 address in IPv6, or has a zone"
		}
		if why != "" {
			return admission.Forbidden(req,
				"node %q is not allowed to have the address %s: it is %s", node, a.Address, why)
		}
		brought = append(brought, ip)
	}
	if len(brought) == 0 {
		return nil
	}
	return p.outsidePodRanges(ctx, req, node, brought)
}

// outsidePodRanges requires addresses that no other node's pod range contains.
func (p Plugin) outsidePodRanges(ctx context.Context, r *admission.Request, node string, brought []netip.Addr) error {
	others, err := admission.List[*corev1.Node](ctx, p.Reader, admission.Nodes, "")
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.Name == node {
			continue
		}
		for _, text := range o.Spec.PodCIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				continue // validation rejects it
			}
			if i := slices.IndexFunc(brought, prefix.Contains); i >= 0 {
				return admission.Forbidden(r,
					"node %q is not allowed to have the address %s: it is in the pod CIDR %s of node "+
						"%q. Choose a --cluster-cidr without addresses of machines", node, brought[i], prefix, o.Name)
			}
		}
	}
	return nil
}
