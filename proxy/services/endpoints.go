// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Endpoint is an endpoint of a Service's port.
type Endpoint struct {
	Addr  netip.AddrPort
	Local bool // on this node
	// Pod is its pod; the UID is empty when there is none.
	Pod corev1.ObjectReference
}

// candidate is an endpoint of a slice, with the conditions and hints that decide whether it is used.
type candidate struct {
	Endpoint
	ready, serving, terminating bool
	zones, nodes                []string
}

// choice holds the endpoints that a port uses on this node.
type choice struct {
	all   []Endpoint // traffic policy Cluster
	local []Endpoint // traffic policy Local
	any   bool       // the port has endpoints, on any node
}

// choose selects endpoints as kube-proxy does: ready ones or, if there are none, serving terminating ones. Topology
// hints apply if every ready endpoint has one, and one of them is for this node or zone.
func choose(cands []candidate, node Node) choice {
	all := better(cands, topology(cands, node))
	local := better(cands, func(c candidate) bool { return c.Local })
	return choice{all: all, local: local, any: len(all) > 0}
}

func better(cands []candidate, fits func(candidate) bool) []Endpoint {
	var ready, last []Endpoint
	for _, c := range cands {
		switch {
		case !fits(c):
		case c.ready:
			ready = append(ready, c.Endpoint)
		case c.serving && c.terminating:
			last = append(last, c.Endpoint)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return last
}

// topology returns the test for topology hints: by node, by zone, or none.
func topology(cands []candidate, node Node) func(candidate) bool {
	forNode := func(c candidate) bool { return slices.Contains(c.nodes, node.Name) }
	forZone := func(c candidate) bool { return slices.Contains(c.zones, node.Zone) }
	ready := 0
	nodeHints := 0
	zoneHints := 0
	nodeFits := false
	zoneFits := false
	for _, c := range cands {
		if !c.ready {
			continue
		}
		ready++
		if len(c.nodes) > 0 {
			nodeHints++
		}
		if len(c.zones) > 0 {
			zoneHints++
		}
		nodeFits = nodeFits || forNode(c)
		zoneFits = zoneFits || forZone(c)
	}
	switch {
	case ready > 0 && nodeHints == ready && nodeFits:
		return forNode
	case ready > 0 && zoneHints == ready && zoneFits && node.Zone != "":
		return forZone
	}
	return func(candidate) bool { return true }
}

// serving returns the serving endpoints.
func serving(cands []candidate) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for _, c := range cands {
		if c.ready || c.serving {
			out[c.Addr] = true
		}
	}
	return out
}

// candidates returns the endpoints of one port of a Service in one family, without duplicates, sorted by address.
func candidates(port corev1.ServicePort, family int, in []*discoveryv1.EndpointSlice, node Node) []candidate {
	var out []candidate
	for _, s := range in {
		if (s.AddressType == discoveryv1.AddressTypeIPv4) != (family == 4) ||
			s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, p := range s.Ports {
			if p.Port == nil || value(p.Name) != port.Name || protocolOf(p.Protocol) != protocolOf(&port.Protocol) {
				continue
			}
			for _, e := range s.Endpoints {
				if c, ok := candidateOf(e, uint16(*p.Port), node); ok && familyOf(c.Addr.Addr()) == family {
					out = append(out, c)
				}
			}
		}
	}
	// An address may be in two slices while it moves from one to the other: the ready one is used.
	slices.SortStableFunc(out, func(a, b candidate) int {
		return cmp.Or(a.Addr.Compare(b.Addr), -compareBool(a.ready, b.ready), -compareBool(a.serving, b.serving))
	})
	return slices.CompactFunc(out, func(a, b candidate) bool { return a.Addr == b.Addr })
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func candidateOf(endpoint discoveryv1.Endpoint, port uint16, node Node) (candidate, bool) {
	if len(endpoint.Addresses) == 0 {
		return candidate{}, false
	}
	addr, err := netip.ParseAddr(endpoint.Addresses[0])
	if err != nil {
		return candidate{}, false
	}
	c := candidate{Endpoint: Endpoint{
		Addr:  netip.AddrPortFrom(addr.Unmap(), port),
		Local: endpoint.NodeName != nil && *endpoint.NodeName == node.Name,
	}}
	c.ready = endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
	c.serving = c.ready
	if endpoint.Conditions.Serving != nil {
		c.serving = *endpoint.Conditions.Serving
	}
	c.terminating = value(endpoint.Conditions.Terminating)
	if endpoint.TargetRef != nil && endpoint.TargetRef.Kind == "Pod" {
		c.Pod = *endpoint.TargetRef
	}
	if h := endpoint.Hints; h != nil {
		for _, z := range h.ForZones {
			c.zones = append(c.zones, z.Name)
		}
		for _, n := range h.ForNodes {
			c.nodes = append(c.nodes, n.Name)
		}
	}
	return c, true
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func protocolOf(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}

// arrange numbers endpoints so that existing ones keep their number, unless they fill a gap.
func arrange(before, want []Endpoint) []Endpoint {
	out := make([]Endpoint, len(want))
	left := make(map[netip.AddrPort]Endpoint, len(want))
	for _, e := range want {
		left[e.Addr] = e
	}
	var gaps []int
	for i := range out {
		if i < len(before) {
			if e, ok := left[before[i].Addr]; ok {
				out[i] = e
				delete(left, e.Addr)
				continue
			}
		}
		gaps = append(gaps, i)
	}
	for _, e := range want {
		if _, ok := left[e.Addr]; ok && len(gaps) > 0 {
			out[gaps[0]] = e
			gaps = gaps[1:]
		}
	}
	return out
}
