// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"keelson/lib/dial"
)

// port is a port of a node.
type port struct {
	proto  corev1.Protocol
	number int32
}

// node is a node that may serve load balancers.
type node struct {
	name      string
	addrs     []netip.Addr
	usedPorts map[port]string // ports that no Service gets there, and what they are
}

// outcome is the result for one Service.
type outcome struct {
	ingress []corev1.LoadBalancerIngress
	reason  string // why there is no address; empty: there is one, or the Service is not ours
}

// managed reports whether the Service is ours: type LoadBalancer without a class.
func managed(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.LoadBalancerClass == nil &&
		svc.DeletionTimestamp == nil
}

// plan assigns each Service the addresses of nodes where its ports are free; if two Services need the same port, the
// older one gets it. The ports of API servers are free nowhere. hosts returns, for a Service with external traffic
// policy Local, the nodes with its endpoints.
func plan(svcs []*corev1.Service, nodes []node, servers map[port]bool, hosts func(
	*corev1.Service,
) map[string]bool,
) map[*corev1.Service]outcome {
	order := slices.Clone(svcs)
	slices.SortFunc(order, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	held := map[port]*corev1.Service{}
	out := map[*corev1.Service]outcome{}
	for _, svc := range order {
		if !managed(svc) {
			continue
		}
		if i := slices.IndexFunc(ports(svc), func(p port) bool { return servers[p] }); i >= 0 {
			p := ports(svc)[i]
			out[svc] = outcome{
				reason: fmt.Sprintf("port %d/%s is the API server's: give the Service another one", p.number, p.proto),
			}
			continue
		}
		if p, by := conflictingService(svc, held); by != nil {
			out[svc] = outcome{reason: fmt.Sprintf("port %d/%s of the nodes belongs to the older Service %s/%s",
				p.number, p.proto, by.Namespace, by.Name)}
			continue
		}
		for _, p := range ports(svc) {
			held[p] = svc
		}
		out[svc] = chooseNodes(svc, nodes, hosts)
	}
	return out
}

func ports(svc *corev1.Service) []port {
	out := make([]port, 0, len(svc.Spec.Ports))
	for _, p := range svc.Spec.Ports {
		out = append(out, port{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port})
	}
	return out
}

func conflictingService(svc *corev1.Service, held map[port]*corev1.Service) (port, *corev1.Service) {
	for _, p := range ports(svc) {
		if by := held[p]; by != nil {
			return p, by
		}
	}
	return port{}, nil
}

// chooseNodes chooses the nodes for a Service.
func chooseNodes(svc *corev1.Service, nodes []node, hosts func(*corev1.Service) map[string]bool) outcome {
	var on map[string]bool
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		if on = hosts(svc); len(on) == 0 {
			return outcome{reason: "externalTrafficPolicy is Local, and no node has a ready endpoint"}
		}
	}
	out := outcome{reason: "no node is ready to serve it"}
	for _, n := range nodes {
		if on != nil && !on[n.name] {
			continue
		}
		if why := portConflictOn(svc, n); why != "" {
			out.reason = why
			continue
		}
		for _, a := range n.addrs {
			if slices.Contains(svc.Spec.IPFamilies, familyOf(a)) || len(svc.Spec.IPFamilies) == 0 && a.Is4() {
				// Each node serves its own addresses only. Other nodes and their pods reach it there.
				mode := corev1.LoadBalancerIPModeProxy
				out.ingress = append(out.ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
			}
		}
	}
	if len(out.ingress) > 0 {
		out.reason = ""
	}
	slices.SortFunc(out.ingress, func(a, b corev1.LoadBalancerIngress) int { return cmp.Compare(a.IP, b.IP) })
	out.ingress = slices.CompactFunc(out.ingress, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP })
	return out
}

func portConflictOn(svc *corev1.Service, n node) string {
	for _, p := range ports(svc) {
		if by := n.usedPorts[p]; by != "" {
			return fmt.Sprintf("port %d/%s of node %s is %s", p.number, p.proto, n.name, by)
		}
	}
	return ""
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// maxAddresses is the maximum number of addresses of a node in the status of each load balancer.
const maxAddresses = 16

// loadBalancerAddresses returns a node's addresses for load balancers; nil: it serves none. A node writes its addresses
// itself: one that a status may not have would leave all load balancers without any.
func loadBalancerAddresses(n *corev1.Node) []netip.Addr {
	if _, out := n.Labels[corev1.LabelNodeExcludeBalancers]; out || n.DeletionTimestamp != nil || !ready(n) {
		return nil
	}
	byType := map[corev1.NodeAddressType][]netip.Addr{}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || ip.Zone() != "" || ip.Is4In6() || dial.Special(ip) != "" ||
			slices.Contains(byType[a.Type], ip) || len(byType[a.Type]) == maxAddresses {
			continue
		}
		byType[a.Type] = append(byType[a.Type], ip)
	}
	if ext := byType[corev1.NodeExternalIP]; len(ext) > 0 {
		return ext
	}
	return byType[corev1.NodeInternalIP]
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// hostPorts are a pod's host ports.
func hostPorts(p *corev1.Pod) []port {
	var out []port
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, cp := range c.Ports {
			if cp.HostPort != 0 {
				out = append(out, port{cmp.Or(cp.Protocol, corev1.ProtocolTCP), cp.HostPort})
			}
		}
	}
	return out
}

// kubeletPort is the port of a node's kubelet; number 0: unknown.
func kubeletPort(n *corev1.Node) port {
	return port{corev1.ProtocolTCP, n.Status.DaemonEndpoints.KubeletEndpoint.Port}
}

// serverPorts are the ports of API servers, from the slices of the Service kubernetes.
func serverPorts(in []*discoveryv1.EndpointSlice) map[port]bool {
	out := map[port]bool{}
	for _, s := range in {
		for _, p := range s.Ports {
			if p.Port != nil {
				out[port{corev1.ProtocolTCP, *p.Port}] = true
			}
		}
	}
	return out
}

// hostsOf are the nodes with ready endpoints.
func hostsOf(in []*discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, s := range in {
		for _, e := range s.Endpoints {
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}
