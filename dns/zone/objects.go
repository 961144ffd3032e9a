// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// clusterIPs are a service's own addresses.
func clusterIPs(s *corev1.Service) []netip.Addr {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 && s.Spec.ClusterIP != "" {
		texts = []string{s.Spec.ClusterIP}
	}
	out := make([]netip.Addr, 0, len(texts))
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// externalName is the name that a service stands for, complete and lower case; "": it is an address, to which no CNAME
// can lead.
func externalName(name string) string {
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return ""
	}
	if _, ok := dns.IsDomainName(name); !ok {
		return ""
	}
	return strings.ToLower(dns.Fqdn(name))
}

func protocol(p corev1.Protocol) string {
	switch p {
	case corev1.ProtocolUDP:
		return "udp"
	case corev1.ProtocolSCTP:
		return "sctp"
	case corev1.ProtocolTCP:
		return "tcp"
	}
	if p == "" {
		return "tcp"
	}
	return strings.ToLower(string(p))
}

// readySlice is what the names need of an endpoint slice: its ready endpoints. Those of a service that publishes not
// ready ones too are all ready: the slice's writer says so.
func readySlice(s *discoveryv1.EndpointSlice) slice {
	out := slice{name: s.Name}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return out
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Port == nil || *p.Port <= 0 || *p.Port > 65535 {
			continue
		}
		q := port{proto: "tcp", number: uint16(*p.Port)}
		if p.Name != nil {
			q.name = strings.ToLower(*p.Name)
		}
		if p.Protocol != nil {
			q.proto = protocol(*p.Protocol)
		}
		out.ports = append(out.ports, q)
	}
	n := 0
	for i := range s.Endpoints {
		if ready(&s.Endpoints[i]) {
			n += len(s.Endpoints[i].Addresses)
		}
	}
	out.endpoints = make([]endpoint, 0, n)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !ready(e) {
			continue
		}
		for _, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			p := endpoint{addr: a.Unmap()}
			if e.Hostname != nil {
				p.host = strings.ToLower(*e.Hostname)
			}
			out.endpoints = append(out.endpoints, p)
		}
	}
	return out
}

// ready is what the specification calls so; a slice that does not say is taken for ready.
func ready(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// name is the endpoint's label below its service's name.
func (p endpoint) name() string {
	if p.host != "" {
		return p.host
	}
	return dashed(p.addr)
}

// dashed is an address as a label: 10-1-2-3, fd00--1; and, since no label ends with a dash, fd00--0.
func dashed(a netip.Addr) string {
	b := a.AppendTo(make([]byte, 0, 40))
	for i, c := range b {
		if c == '.' || c == ':' {
			b[i] = '-'
		}
	}
	if b[len(b)-1] == '-' {
		b = append(b, '0')
	}
	return string(b)
}

// undashed reads the label of a pod record; false: it is no address.
func undashed(label string) (netip.Addr, bool) {
	sep := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		sep = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", sep))
	return a, err == nil && a.Zone() == ""
}
