// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"keelson/network/nft"
)

// Fate is what the rules do with a connection: forward, reject or drop it.
type Fate string

// The fates of connections to a Service's frontends.
const (
	Forwarded Fate = "forwarded" // to one of Way.Endpoints
	Refused   Fate = "refused"   // rejected with an ICMP error or TCP reset
	Dropped   Fate = "dropped"   // without a reply
)

// Way describes what a node's rules do with a connection of a pod of the node to a frontend, for `keelson trace`.
type Way struct {
	Fate Fate
	// Front is the kind of the frontend: "cluster IP", "external address", "node port".
	Front string
	// Port is the name of the Service's port; it may be "".
	Port string
	// Endpoints are equally likely, unless the client has session affinity, with the timeout Sticky.
	Endpoints []Endpoint
	Sticky    time.Duration
	// Unserved: the Service does not have the port.
	Unserved bool
}

// WayOf returns what the rules of a node do with a connection of one of its pods to an address of svc. It computes the
// elements that Table would write. false: svc is not served at that address.
func WayOf(
	svc *corev1.Service, in []*discoveryv1.EndpointSlice, node Node, to netip.AddrPort, proto uint8,
) (Way, bool) {
	part := partOf(svc, in, node, nil, func(string) string { return "" })
	ipFamily := familyByNumber(familyOf(to.Addr()))
	key := nft.Addr(to.Addr()) + nft.Proto(proto) + nft.PortNumber(to.Port())
	way := Way{Sticky: affinityTimeout(svc), Front: "cluster IP", Fate: Forwarded}
	has := func(set, key string) (Element, bool) {
		i := slices.IndexFunc(part.Elements, func(e Element) bool {
			return e.Set == ipFamily.name(set) && e.Key == key
		})
		if i < 0 {
			return Element{}, false
		}
		return part.Elements[i], true
	}
	port := part.portAt(to, proto)
	if port != nil {
		way.Port = port.Name
	}
	_, ours := has("cluster-ips", nft.Addr(to.Addr()))
	closed, isClosed := has("closed", key)
	switch {
	case isClosed && closed.Value == nft.ToDrop:
		way.Fate = Dropped
	case isClosed:
		way.Fate = Refused
		way.Front = "external address"
	case ours && (port == nil || !exists(has("cluster", key))):
		way.Fate = Refused
		way.Unserved = port == nil
	case ours:
		way.Endpoints = endpointsOf(part, svc, in, node, listKey{ipFamily.name(string(clusterAll)), key}, port.Name,
			ipFamily)
	case exists(has("external", key)):
		way.Front = "external address"
		way.Endpoints = port.Endpoints // pods may use all endpoints
	default:
		return part.nodePortWay(way, to, proto, ipFamily)
	}
	return way, true
}

func exists(_ Element, ok bool) bool { return ok }

// nodePortWay is WayOf for an address of a node.
func (p *Part) nodePortWay(w Way, to netip.AddrPort, proto uint8, f ipFamily) (Way, bool) {
	w.Front = "node port"
	for _, port := range p.Ports {
		if port.NodePort != to.Port() || port.Proto != proto || familyOf(port.Fronts[0].Addr()) != f.n {
			continue
		}
		if w.Port, w.Endpoints = port.Name, port.Endpoints; len(w.Endpoints) == 0 {
			w.Fate = Refused
		}
		return w, true
	}
	return Way{}, false
}

func (p *Part) portAt(to netip.AddrPort, proto uint8) *Port {
	for i := range p.Ports {
		if p.Ports[i].Proto == proto && slices.Contains(p.Ports[i].Fronts, to) {
			return &p.Ports[i]
		}
	}
	return nil
}

// endpointsOf returns the endpoints of a cluster IP: all, or with the internal traffic policy Local those of the node.
func endpointsOf(
	p *Part, svc *corev1.Service, in []*discoveryv1.EndpointSlice, node Node, key listKey, name string, f ipFamily,
) []Endpoint {
	if eps := p.lists[key]; len(eps) > 0 {
		return eps
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(sp corev1.ServicePort) bool { return sp.Name == name })
	if i < 0 {
		return nil
	}
	// with session affinity there are chains instead of a map
	c := choose(candidates(svc.Spec.Ports[i], f.n, in, node), node)
	if policy := svc.Spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		return c.local
	}
	return c.all
}
