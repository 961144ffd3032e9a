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

// Fate is what the rules do with a connection.
type Fate string

// The fates of connections to a Service's frontends.
const (
	Forwarded Fate = "forwarded" // to one of Way.Endpoints
	Refused   Fate = "refused"   // at once
	Dropped   Fate = "dropped"   // without a word
)

// Way is what a node's rules do with a connection that a pod of the node opens to a frontend. `keelson trace` tells it.
type Way struct {
	Fate Fate
	// Front is what kind of address it was sent to: "cluster IP", "external address", "node port".
	Front string
	// Port is the Service's port; "" has no name.
	Port string
	// Endpoints are equally likely, unless the client is remembered for Sticky.
	Endpoints []Endpoint
	Sticky    time.Duration
	// Unserved is a port that the Service does not have.
	Unserved bool
}

// WayOf says what the rules of a node do with a connection of one of its pods to an address that is svc's. It reads the plan of the table:
// the elements that Table puts into the kernel. false: svc is not served at that address.
func WayOf(svc *corev1.Service, in []*discoveryv1.EndpointSlice, node Node, to netip.AddrPort, proto uint8) (Way, bool) {
	p := partOf(svc, in, node, nil, func(string) string { return "" })
	f := wordsOf(familyOf(to.Addr()))
	key := nft.Addr(to.Addr()) + nft.Proto(proto) + nft.PortNumber(to.Port())
	w := Way{Sticky: stickiness(svc), Front: "cluster IP", Fate: Forwarded}
	has := func(set, key string) (Element, bool) {
		i := slices.IndexFunc(p.Elements, func(e Element) bool { return e.Set == f.name(set) && e.Key == key })
		if i < 0 {
			return Element{}, false
		}
		return p.Elements[i], true
	}
	port := p.portAt(to, proto)
	if port != nil {
		w.Port = port.Name
	}
	_, ours := has("cluster-ips", nft.Addr(to.Addr()))
	closed, isClosed := has("closed", key)
	switch {
	case isClosed && closed.Value == nft.ToDrop:
		w.Fate = Dropped
	case isClosed:
		w.Fate, w.Front = Refused, "external address"
	case ours && (port == nil || !exists(has("cluster", key))):
		w.Fate, w.Unserved = Refused, port == nil
	case ours:
		w.Endpoints = endpointsOf(p, svc, in, node, listKey{f.name(string(clusterAll)), key}, port.Name, f)
	case exists(has("external", key)):
		w.Front, w.Endpoints = "external address", port.Endpoints // what comes from pods may use all
	default:
		return p.nodePortWay(w, to, proto, f)
	}
	return w, true
}

func exists(_ Element, ok bool) bool { return ok }

// nodePortWay is for addresses that are a node's.
func (p *Part) nodePortWay(w Way, to netip.AddrPort, proto uint8, f words) (Way, bool) {
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

// endpointsOf are those that a cluster IP's map leads to: all, or with the internal traffic policy Local the node's own.
func endpointsOf(p *Part, svc *corev1.Service, in []*discoveryv1.EndpointSlice, node Node, key listKey, name string, f words) []Endpoint {
	if eps := p.lists[key]; len(eps) > 0 {
		return eps
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(sp corev1.ServicePort) bool { return sp.Name == name })
	if i < 0 {
		return nil
	}
	c := choose(candidates(svc.Spec.Ports[i], f.n, in, node), node) // clients are remembered: the lists are chains
	if policy := svc.Spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		return c.local
	}
	return c.all
}
