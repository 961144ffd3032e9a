// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// kubeDNS is the service at whose addresses the cluster's servers answer.
const kubeDNS = "kube-system/kube-dns"

// lookup says what a name below the domain stands for. rel is lower case, without the domain.
func (x *Index) lookup(rel string, qtype uint16) found {
	if rel == "" {
		return found{exists: true, apex: true}
	}
	switch rel {
	case "dns-version":
		return found{exists: true, txt: SchemaVersion}
	case "dns":
		return found{exists: true}
	case "ns.dns":
		f := found{exists: true}
		if e := x.get(kubeDNS); e != nil {
			f.addrs = e.ips
		}
		return f
	}
	labels := dns.SplitDomainName(rel)
	n := len(labels)
	if n == 0 || labels[n-1] != "svc" && labels[n-1] != "pod" {
		return found{}
	}
	if n == 1 {
		return found{exists: true} // there is something below
	}
	ns := labels[n-2]
	if !x.namespace(ns) {
		return found{}
	}
	switch {
	case n == 2:
		return found{exists: true}
	case labels[n-1] == "pod":
		return pod(labels[:n-2])
	}
	return x.service(ns, labels[n-3], labels[:n-3], qtype)
}

// pod answers for any address: with the mode that CoreDNS calls insecure no pod need be known.
func pod(labels []string) found {
	if len(labels) != 1 {
		return found{}
	}
	a, ok := undashed(labels[0])
	if !ok {
		return found{}
	}
	return found{exists: true, addrs: []netip.Addr{a}}
}

// service answers for a service, or for the labels below its name.
func (x *Index) service(ns, name string, below []string, qtype uint16) found {
	key := ns + "/" + name
	entry := x.get(key)
	if entry == nil || !entry.exists {
		return found{}
	}
	own := name + "." + ns + ".svc." + x.domain
	switch len(below) {
	case 0:
		return entry.itself(own, qtype)
	case 1:
		if proto, ok := strings.CutPrefix(below[0], "_"); ok {
			return found{exists: entry.speaks("", proto)}
		}
		return entry.endpoint(own, below[0], qtype)
	case 2:
		p, ok := strings.CutPrefix(below[0], "_")
		proto, ok2 := strings.CutPrefix(below[1], "_")
		if !ok || !ok2 || p == "" || !entry.speaks(p, proto) {
			return found{}
		}
		return found{exists: true, srv: entry.targets(own, p, proto, qtype)}
	}
	return found{}
}

// itself is the service's own name.
func (e *entry) itself(own string, qtype uint16) found {
	switch {
	case e.external != "":
		return found{exists: true, alias: e.external}
	case !e.headless:
		return found{exists: len(e.ips) > 0, addrs: e.ips, srv: e.targets(own, "", "", qtype)}
	}
	f := found{exists: e.answerable()}
	if qtype == dns.TypeSRV {
		f.srv = e.targets(own, "", "", qtype)
		return f
	}
	f.addrs = e.addrs("", qtype)
	return f
}

// endpoint is the name of one endpoint below the service's.
func (e *entry) endpoint(own, host string, qtype uint16) found {
	f := found{}
	for i := range e.slices {
		for _, p := range e.slices[i].endpoints {
			if p.name() != host {
				continue
			}
			f.exists = true
			if qtype != dns.TypeSRV {
				break
			}
			for _, q := range e.slices[i].ports {
				f.srv = append(f.srv, target{host + "." + own, p.addr, q.number})
			}
		}
	}
	if f.exists && qtype != dns.TypeSRV {
		f.addrs = e.addrs(host, qtype)
	}
	return f
}

// addrs are the endpoints' addresses of the family that is asked for, each once; those of one host if it is given.
func (e *entry) addrs(host string, qtype uint16) []netip.Addr {
	if qtype != dns.TypeA && qtype != dns.TypeAAAA {
		return nil
	}
	n := 0
	for i := range e.slices {
		n += len(e.slices[i].endpoints)
	}
	out := make([]netip.Addr, 0, n)
	var seen map[netip.Addr]struct{}
	if len(e.slices) > 1 {
		seen = make(map[netip.Addr]struct{}, n)
	}
	for i := range e.slices {
		for _, p := range e.slices[i].endpoints {
			if p.addr.Is4() != (qtype == dns.TypeA) || host != "" && p.name() != host {
				continue
			}
			if seen != nil {
				if _, again := seen[p.addr]; again {
					continue
				}
				seen[p.addr] = struct{}{}
			}
			out = append(out, p.addr)
		}
	}
	return out
}

// speaks reports whether there is a named port: of the name p, or of any, if it is empty.
func (e *entry) speaks(p, proto string) bool {
	has := func(ports []port) bool {
		for _, q := range ports {
			if q.proto == proto && q.name != "" && (p == "" || q.name == p) {
				return true
			}
		}
		return false
	}
	if e.external != "" {
		return false
	}
	if !e.headless {
		return has(e.ports)
	}
	for i := range e.slices {
		if len(e.slices[i].endpoints) > 0 && has(e.slices[i].ports) {
			return true
		}
	}
	return false
}

// targets are the answers for the port p, or for all ports if it is empty. Only a question for SRV has some.
func (e *entry) targets(own, p, proto string, qtype uint16) []target {
	if qtype != dns.TypeSRV {
		return nil
	}
	var out []target
	wanted := func(q port) bool { return p == "" || q.name == p && q.proto == proto }
	if !e.headless {
		for _, q := range e.ports {
			for _, ip := range e.ips {
				if wanted(q) {
					out = append(out, target{own, ip, q.number})
				}
			}
		}
		return out
	}
	for i := range e.slices {
		for _, q := range e.slices[i].ports {
			if !wanted(q) {
				continue
			}
			for _, a := range e.slices[i].endpoints {
				out = append(out, target{a.name() + "." + own, a.addr, q.number})
			}
		}
	}
	return out
}

// Address reads the name of a reverse question, which is lower case; false: it is none.
func Address(name string) (netip.Addr, bool) {
	if rel, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		parts := strings.Split(rel, ".")
		if len(parts) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		return a, err == nil
	}
	rel, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok || len(rel) != 63 {
		return netip.Addr{}, false
	}
	var out strings.Builder
	for i := 62; i >= 0; i -= 2 {
		out.WriteByte(rel[i])
		if i%8 == 0 && i > 0 {
			out.WriteByte(':')
		}
	}
	for i := 1; i < 63; i += 2 {
		if rel[i] != '.' {
			return netip.Addr{}, false
		}
	}
	a, err := netip.ParseAddr(out.String())
	return a, err == nil
}
