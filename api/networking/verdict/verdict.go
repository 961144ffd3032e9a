// SPDX-License-Identifier: Apache-2.0

// Package verdict says what NetworkPolicies allow, by name, straight from the objects: slowly, a rule at a time, in the
// words of the API. It explains a connection to people (why, trace), and is what the node's rule set (proxy/policy) is
// tested against. It does no I/O.
package verdict

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	podapi "keelson/api/core/pod"
)

// Cluster is what policies speak of.
type Cluster struct {
	Policies []*networkingv1.NetworkPolicy
	// Namespaces are the labels of namespaces by name.
	Namespaces map[string]map[string]string
}

// End is an end of a connection, as it is after the translation of Services' addresses.
type End struct {
	Addr netip.Addr
	// Pod is whose address it is; nil: no pod's.
	Pod *corev1.Pod
}

// Port is where the server listens. Number 0 is for protocols without ports, and Protocol is then "" (ICMP).
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

// Verdict is what policies think of a connection at one of its ends.
type Verdict struct {
	// Isolating are the policies (namespace/name) that select the pod for the direction. None: everything is allowed.
	Isolating []string
	// Allowing are those of them that allow the connection.
	Allowing []string
}

// Allowed says that the connection may be.
func (v Verdict) Allowed() bool { return len(v.Isolating) == 0 || len(v.Allowing) > 0 }

// Egress is what the client's policies say.
func (c *Cluster) Egress(client, server End, port Port) Verdict {
	return c.evaluate(client, server, networkingv1.PolicyTypeEgress, func(p *networkingv1.NetworkPolicy) bool {
		return slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
			return c.peers(p.Namespace, r.To, server) && ports(r.Ports, port, server.Pod)
		})
	}, client)
}

// Ingress is what the server's policies say.
func (c *Cluster) Ingress(client, server End, port Port) Verdict {
	return c.evaluate(client, server, networkingv1.PolicyTypeIngress, func(p *networkingv1.NetworkPolicy) bool {
		return slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
			return c.peers(p.Namespace, r.From, client) && ports(r.Ports, port, server.Pod)
		})
	}, server)
}

func (c *Cluster) evaluate(client, server End, t networkingv1.PolicyType, allows func(
	*networkingv1.NetworkPolicy,
) bool, at End,
) Verdict {
	var verdict Verdict
	if !Selectable(at.Pod) {
		return verdict
	}
	self := client.Addr == server.Addr
	for _, p := range c.Policies {
		if p.Namespace != at.Pod.Namespace || !Isolates(p, t) || !matches(&p.Spec.PodSelector, at.Pod.Labels) {
			continue
		}
		name := p.Namespace + "/" + p.Name
		verdict.Isolating = append(verdict.Isolating, name)
		if self || allows(p) {
			verdict.Allowing = append(verdict.Allowing, name)
		}
	}
	return verdict
}

// Selectable pods have addresses of their own, and containers that have not ended: policies' selectors find no others.
func Selectable(p *corev1.Pod) bool {
	return p != nil && !p.Spec.HostNetwork && !podapi.Terminal(p)
}

// Isolates says that a policy is about a direction.
func Isolates(p *networkingv1.NetworkPolicy, t networkingv1.PolicyType) bool {
	if len(p.Spec.PolicyTypes) > 0 {
		return slices.Contains(p.Spec.PolicyTypes, t)
	}
	return t == networkingv1.PolicyTypeIngress || len(p.Spec.Egress) > 0
}

func matches(s *metav1.LabelSelector, l map[string]string) bool {
	sel, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && sel.Matches(labels.Set(l))
}

// peers says that an end is one of a rule's peers.
func (c *Cluster) peers(namespace string, list []networkingv1.NetworkPolicyPeer, end End) bool {
	if len(list) == 0 {
		return true
	}
	return slices.ContainsFunc(list, func(peer networkingv1.NetworkPolicyPeer) bool {
		if peer.IPBlock != nil {
			return inBlock(peer.IPBlock, end.Addr)
		}
		if !Selectable(end.Pod) || peer.PodSelector == nil && peer.NamespaceSelector == nil {
			return false
		}
		if peer.PodSelector != nil && !matches(peer.PodSelector, end.Pod.Labels) {
			return false
		}
		if peer.NamespaceSelector == nil {
			return end.Pod.Namespace == namespace
		}
		l, known := c.Namespaces[end.Pod.Namespace]
		return known && matches(peer.NamespaceSelector, l)
	})
}

func inBlock(b *networkingv1.IPBlock, a netip.Addr) bool {
	in := func(cidr string) (inside, ok bool) {
		p, err := netip.ParsePrefix(cidr)
		return err == nil && p.Contains(a), err == nil
	}
	if inside, _ := in(b.CIDR); !inside {
		return false
	}
	return !slices.ContainsFunc(b.Except, func(e string) bool {
		inside, ok := in(e)
		return inside || !ok
	})
}

// ports says that a rule's ports have a port of the server.
func ports(list []networkingv1.NetworkPolicyPort, port Port, server *corev1.Pod) bool {
	if len(list) == 0 {
		return true
	}
	return slices.ContainsFunc(list, func(p networkingv1.NetworkPolicyPort) bool {
		proto := corev1.ProtocolTCP
		if p.Protocol != nil {
			proto = *p.Protocol
		}
		switch {
		case proto != port.Protocol:
			return false
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			n, ok := Named(server, p.Port.StrVal, proto)
			return ok && n == port.Number
		case p.EndPort != nil:
			return p.Port.IntVal <= port.Number && port.Number <= *p.EndPort
		}
		return p.Port.IntVal == port.Number
	})
}

// Named finds the port of a name and protocol among a pod's containers.
func Named(p *corev1.Pod, name string, proto corev1.Protocol) (int32, bool) {
	if !Selectable(p) {
		return 0, false
	}
	all := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	for _, c := range all {
		for _, port := range c.Ports {
			has := port.Protocol
			if has == "" {
				has = corev1.ProtocolTCP
			}
			if port.Name == name && has == proto {
				return port.ContainerPort, true
			}
		}
	}
	return 0, false
}
