// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"keelson/network/nft"
)

// Numbers of protocols.
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// LabelHeadless is on slices of headless Services, which the proxy does not need.
const LabelHeadless = corev1.IsHeadlessService

// LabelProxyName names another proxy that serves a Service; this one ignores such Services.
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// Element is one element of a set.
type Element struct{ Set, Key, Value string }

// Part is the part of one Service in the table.
type Part struct {
	Elements []Element
	Chains   map[string]nft.Chain // also shared ones, which have the same name and rules in all parts
	Sets     map[string]nft.Set
	Ports    []Port
	// Health is the health check node port; nil: none.
	Health *Health
	// Refused are frontends that are in use by a process of this node or another Service.
	Refused []Refusal
	// Off are the external IPs that this node does not serve, because the feature gate is off. They are the Service's.
	Off []string
	// TooLarge is the number of elements that the Service would have, if they are more than MostElements: it has none
	// then. 0: it is served.
	TooLarge int

	lists  map[listKey][]Endpoint
	claims []string // external frontends, as set and key
}

// Port is a port of a Service in one family on this node.
type Port struct {
	Name      string
	Proto     uint8
	Fronts    []netip.AddrPort // cluster and external
	NodePort  uint16
	Endpoints []Endpoint
	// Serving, for UDP only, are all serving endpoints on any node and for any traffic policy: existing flows to them
	// stay.
	Serving map[netip.AddrPort]bool
}

// Health is the data of a health check node port.
type Health struct {
	Port  uint16
	Local int // ready endpoints on this node
}

// Refusal is a frontend that is not served.
type Refusal struct {
	Addr netip.AddrPort
	By   string // what uses it
}

type listKey struct {
	set  string
	port string
}

// ownerFunc returns the other owner of an external frontend; "": none.
type ownerFunc func(frontend string) string

// builder makes a Part.
type builder struct {
	node   Node
	svc    *corev1.Service
	before map[listKey][]Endpoint
	taken  ownerFunc
	part   *Part
}

// served reports whether this proxy serves the Service.
func served(svc *corev1.Service) bool {
	if svc == nil || svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" ||
		svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return false
	}
	_, other := svc.Labels[LabelProxyName]
	_, headless := svc.Labels[LabelHeadless]
	return !other && !headless
}

// partOf computes the part of svc in the table of the node. before is its last part; taken returns the owners of
// external frontends.
func partOf(svc *corev1.Service, in []*discoveryv1.EndpointSlice, node Node, before *Part, taken ownerFunc) *Part {
	part := &Part{Chains: map[string]nft.Chain{}, Sets: map[string]nft.Set{}, lists: map[listKey][]Endpoint{}}
	if !served(svc) {
		return part
	}
	if !node.ExternalIPs {
		part.Off = svc.Spec.ExternalIPs
	}
	b := &builder{
		node:  node,
		svc:   svc,
		taken: taken,
		part:  part,
	}
	if before != nil {
		b.before = before.lists
	}
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	if n := b.elements(in); n > MostElements {
		part.TooLarge = n
	}
	for _, s := range ips {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			continue
		}
		// connections to one that is not served are rejected
		part.put(familyByNumber(familyOf(ip)).name("cluster-ips"), nft.Addr(ip), "")
		if part.TooLarge > 0 {
			continue
		}
		for _, port := range svc.Spec.Ports {
			b.port(ip, port, in)
		}
	}
	if part.TooLarge > 0 {
		return part
	}
	part.health(svc, in, node)
	return part
}

// MostElements limits what one Service may take: its ports, endpoints, external addresses and source ranges multiply.
const MostElements = 250000

// Shares of MostElements: an endpoint with session affinity has a chain and a set of its own; comparing ports costs
// time only.
const (
	stickyCost    = 20
	comparedPorts = 64
)

// elements returns how many elements the Service has at most. It makes none.
func (b *builder) elements(in []*discoveryv1.EndpointSlice) int {
	endpoints := 0
	named := 0
	for _, s := range in {
		endpoints += len(s.Endpoints)
		named += len(s.Ports)
	}
	ports := len(b.svc.Spec.Ports)
	outer := len(b.externals(4)) + len(b.externals(6))
	lists := 1 + 2*outer
	if b.svc.Spec.Type != corev1.ServiceTypeClusterIP {
		lists += 2
	}
	each := 1
	if affinityTimeout(b.svc) > 0 {
		each = stickyCost
	}
	// the lists of a port share the chains of its endpoints
	return ports * (endpoints*(lists+each-1) + outer*(1+len(b.svc.Spec.LoadBalancerSourceRanges)) + named/comparedPorts)
}

func (p *Part) health(svc *corev1.Service, in []*discoveryv1.EndpointSlice, node Node) {
	if svc.Spec.HealthCheckNodePort == 0 || svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return
	}
	local := map[netip.Addr]bool{}
	for _, f := range families {
		for _, port := range svc.Spec.Ports {
			for _, c := range candidates(port, f.n, in, node) {
				if c.Local && c.ready {
					local[c.Addr.Addr()] = true
				}
			}
		}
	}
	p.Health = &Health{Port: uint16(svc.Spec.HealthCheckNodePort), Local: len(local)}
}

func (p *Part) put(set, key, value string) { p.Elements = append(p.Elements, Element{set, key, value}) }

// port adds one port in the family of the cluster IP.
func (b *builder) port(ip netip.Addr, sp corev1.ServicePort, in []*discoveryv1.EndpointSlice) {
	ipFamily := familyByNumber(familyOf(ip))
	cands := candidates(sp, ipFamily.n, in, b.node)
	s := &servedPort{
		builder: b,
		f:       ipFamily,
		id:      digest(b.svc.Namespace + "/" + b.svc.Name + ":" + sp.Name + "/" + string(sp.Protocol)),
		name:    sp.Name + "/" + string(sp.Protocol),
		proto:   protoNumber(protocolOf(&sp.Protocol)),
		number:  uint16(sp.Port),
		timeout: affinityTimeout(b.svc),
		choice:  choose(cands, b.node),
	}
	port := Port{
		Name:      sp.Name,
		Proto:     s.proto,
		Fronts:    []netip.AddrPort{netip.AddrPortFrom(ip, s.number)},
		NodePort:  uint16(sp.NodePort),
		Endpoints: s.all,
	}
	if s.proto == protoUDP {
		port.Serving = serving(cands)
	}
	s.cluster(ip)
	for _, ext := range b.externals(ipFamily.n) {
		if s.external(ext) {
			port.Fronts = append(port.Fronts, netip.AddrPortFrom(ext.addr, s.number))
		}
	}
	if sp.NodePort != 0 {
		s.nodePort(ip, uint16(sp.NodePort))
	}
	for _, e := range append(s.all, s.local...) {
		if e.Local {
			b.part.put(ipFamily.name("hairpin"), nft.Addr(e.Addr.Addr())+nft.Addr(e.Addr.Addr()), "")
		}
	}
	b.part.Ports = append(b.part.Ports, port)
}

// ProtocolName returns the name of a protocol's number.
func ProtocolName(n uint8) string {
	switch n {
	case protoUDP:
		return string(corev1.ProtocolUDP)
	case protoSCTP:
		return string(corev1.ProtocolSCTP)
	}
	return string(corev1.ProtocolTCP)
}

func protoNumber(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolUDP:
		return protoUDP
	case corev1.ProtocolSCTP:
		return protoSCTP
	case corev1.ProtocolTCP:
	}
	return protoTCP
}

// outer is an external IP or the address of a load balancer.
type outer struct {
	addr   netip.Addr
	ranges []netip.Prefix // allowed sources; none: all
}

// externals returns the Service's external addresses of a family that this node serves. A load balancer's address with
// the mode Proxy is a node's, which alone serves it: elsewhere the Service would take the address and port away from
// that node's programs.
func (b *builder) externals(family int) []outer {
	var out []outer
	seen := map[netip.Addr]bool{}
	add := func(s string, ranges []netip.Prefix) {
		a, err := netip.ParseAddr(s)
		if err != nil || familyOf(a.Unmap()) != family || seen[a.Unmap()] {
			return
		}
		seen[a.Unmap()] = true
		out = append(out, outer{a.Unmap(), ranges})
	}
	if b.svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		ranges := sourceRanges(b.svc.Spec.LoadBalancerSourceRanges, family)
		for _, in := range b.svc.Status.LoadBalancer.Ingress {
			a, err := netip.ParseAddr(in.IP)
			proxied := in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy
			if err == nil && (!proxied || b.node.owns(a.Unmap())) {
				add(in.IP, ranges)
			}
		}
	}
	if !b.node.ExternalIPs {
		return out
	}
	for _, s := range b.svc.Spec.ExternalIPs {
		a, err := netip.ParseAddr(s)
		if err == nil && !b.node.Others[a.Unmap()] {
			add(s, nil)
		}
	}
	return out
}

// sourceRanges returns the ranges of a family, without those that another one contains; none if one of them is
// everything.
func sourceRanges(in []string, family int) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || familyOf(p.Addr()) != family {
			continue
		}
		out = append(out, p.Masked())
	}
	// Wider ranges come before those that they contain.
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var kept []netip.Prefix
	for _, p := range out {
		if p.Bits() == 0 {
			return nil
		}
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// servedPort is one port in one family.
type servedPort struct {
	*builder
	choice
	f       ipFamily
	id      string
	name    string
	proto   uint8
	number  uint16
	timeout time.Duration
}

func (s *servedPort) key(ip netip.Addr) string {
	return nft.Addr(ip) + nft.Proto(s.proto) + nft.PortNumber(s.number)
}

// fill adds endpoints to a map; see arrange for their numbers.
func (s *servedPort) fill(l list, key string, eps []Endpoint) {
	set := s.f.name(string(l))
	lk := listKey{set, key}
	eps = arrange(s.before[lk], eps)
	s.part.lists[lk] = eps
	for i, e := range eps {
		s.part.put(set, key+nft.Number(uint32(i)), nft.Addr(e.Addr.Addr())+nft.PortNumber(e.Addr.Port()))
	}
}

// share adds a shared chain and returns its name.
func (s *servedPort) share(c nft.Chain) string {
	s.part.Chains[c.Name] = c
	return c.Name
}

// cluster serves the cluster IP.
func (s *servedPort) cluster(ip netip.Addr) {
	key := s.key(ip)
	eps := s.all
	id := s.id
	if p := s.svc.Spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		if eps, id = s.local, s.id+"-local"; len(eps) == 0 && s.any {
			s.part.put(s.f.name("closed"), key, nft.ToDrop)
		}
	}
	if len(eps) == 0 {
		return // the set cluster-ips rejects it
	}
	set := s.f.name("cluster")
	if s.timeout > 0 {
		rules := append(foreign(s.f, s.node), nft.Rule{nft.Goto(s.part.addAffinity(s.f, id, eps, s.timeout))})
		s.part.put(set, key, nft.ToChain(s.part.own("cluster", s.f, s.id, rules)))
		return
	}
	s.fill(clusterAll, key, eps)
	s.part.put(set, key, nft.ToChain(s.share(clusterChain(s.f, s.node, len(eps)))))
}

// external serves an external IP or an address of a load balancer; false: it is in use by something else.
func (s *servedPort) external(ext outer) bool {
	key := s.key(ext.addr)
	set := s.f.name("external")
	at := netip.AddrPortFrom(ext.addr, s.number)
	if by := s.node.userOf(at, s.proto); by != "" {
		s.part.Refused = append(s.part.Refused, Refusal{at, by})
		return false
	}
	if by := s.taken(set + key); by != "" {
		s.part.Refused = append(s.part.Refused, Refusal{at, by})
		return false
	}
	s.part.claims = append(s.part.claims, set+key)
	if len(ext.ranges) > 0 {
		s.part.put(s.f.name("guarded"), key, nft.ToChain(s.f.name("sources")))
		for _, r := range ext.ranges {
			k := nft.RangeKey(nft.Only(nft.Addr(ext.addr)), nft.Only(nft.Proto(s.proto)),
				nft.Only(nft.PortNumber(s.number)), nft.Net(r))
			s.part.put(s.f.name("sources"), k, "")
		}
	}
	if !s.any {
		s.part.put(s.f.name("closed"), key, nft.ToChain("refuse"))
		return true
	}
	s.part.put(set, key, nft.ToChain(s.outside(externalKind, key)))
	return true
}

// nodePort serves a node port, unless something else of this node uses it.
func (s *servedPort) nodePort(ip netip.Addr, port uint16) {
	if by := s.node.userOfPort(s.proto, port); by != "" {
		unspecified := netip.IPv4Unspecified()
		if ip.Is6() {
			unspecified = netip.IPv6Unspecified()
		}
		s.part.Refused = append(s.part.Refused, Refusal{netip.AddrPortFrom(unspecified, port), by})
		return
	}
	key := nft.Proto(s.proto) + nft.PortNumber(port)
	if !s.any {
		s.part.put(s.f.name("closedports"), key, nft.ToChain("refuse"))
		return
	}
	s.part.put(s.f.name("nodeports"), key, nft.ToChain(s.outside(nodePortKind, key)))
}

// outside fills the lists of an external frontend or node port, and returns the chain that serves it.
func (s *servedPort) outside(k kind, key string) string {
	local := s.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.timeout > 0 {
		return s.outsideSticky(local)
	}
	s.fill(k.all, key, s.all)
	if !local {
		return s.share(outerChain(s.f, k, len(s.all)))
	}
	s.fill(k.local, key, s.local)
	s.share(plainChain(s.f, k, len(s.all)))
	return s.share(outerLocalChain(s.f, s.node, k, len(s.local), len(s.all)))
}

func (s *servedPort) outsideSticky(local bool) string {
	all := s.part.addAffinity(s.f, s.id, s.all, s.timeout)
	if !local {
		return s.part.own("outer", s.f, s.id, []nft.Rule{{nft.SetMark(masqueradeBit)}, {nft.Goto(all)}})
	}
	rules := shortcut(s.f, s.node, all)
	if to := s.part.addAffinity(s.f, s.id+"-local", s.local, s.timeout); to != "" {
		rules = append(rules, nft.Rule{nft.Goto(to)})
	} else {
		rules = append(rules, nft.Rule{nft.Drop()})
	}
	return s.part.own("outer", s.f, s.id, rules)
}
