// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// SchemaVersion is the version of the specification, which dns-version says.
const SchemaVersion = "1.1.0"

// Answer is what the cluster says to a question.
type Answer struct {
	// Mine: the name is the cluster's. False: another server is to be asked.
	Mine  bool
	Rcode int
	// Answer, Authority and Additional are the sections. Their records are the caller's.
	Answer, Authority, Additional []dns.RR
	// Chase is the name that Answer's last record, a CNAME, leads to, where that is outside of the cluster.
	Chase string
}

// maxAliases is how many services may lead to one another by ExternalName.
const maxAliases = 8

// Resolve answers a question of class IN by the names of the cluster. The owner's name in answers is written as the
// question writes it.
func (x *Index) Resolve(q dns.Question) Answer {
	name := strings.ToLower(q.Name)
	if a, ok := Address(name); ok {
		return x.reverseAnswer(q, name, a)
	}
	rel, ok := x.within(name)
	if !ok {
		return Answer{}
	}
	return x.inside(q, rel, 0)
}

// within cuts the cluster's domain from a lower-case name.
func (x *Index) within(name string) (rel string, ok bool) {
	rel, ok = strings.CutSuffix(name, x.domain)
	if !ok || rel == "" {
		return "", ok
	}
	if rel[len(rel)-1] != '.' || len(rel) > 1 && rel[len(rel)-2] == '\\' {
		return "", false
	}
	return rel[:len(rel)-1], true
}

// found is what a name stands for.
type found struct {
	exists bool // the name, or one below it
	// addrs are its addresses, srv its services.
	addrs []netip.Addr
	srv   []target
	// alias is a name outside of the service.
	alias string
	txt   string
	apex  bool
}

// target is one answer to a question for SRV.
type target struct {
	name string
	addr netip.Addr
	port uint16
}

// inside answers for a name in the cluster's domain. depth counts the aliases that led there.
func (x *Index) inside(question dns.Question, rel string, depth int) Answer {
	found := x.lookup(rel, question.Qtype)
	out := Answer{Mine: true}
	switch {
	case !found.exists:
		out.Rcode = dns.RcodeNameError
	case question.Qtype == dns.TypeAXFR || question.Qtype == dns.TypeIXFR:
		return Answer{Mine: true, Rcode: dns.RcodeRefused}
	case question.Qtype == dns.TypeANY: // RFC 8482
		out.Answer = append(out.Answer, &dns.HINFO{Hdr: x.header(question.Name, dns.TypeHINFO), Cpu: "RFC8482"})
	case found.alias != "" && question.Qtype != dns.TypeSRV:
		return x.follow(question, found.alias, depth)
	case found.apex:
		x.apex(question, &out)
	default:
		x.records(question, found, &out)
	}
	if len(out.Answer) == 0 {
		out.Authority = []dns.RR{x.soa()}
	}
	return out
}

// records answers with what a service, an endpoint or a pod has of the type that is asked for.
func (x *Index) records(q dns.Question, f found, out *Answer) {
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		out.Answer = x.hosts(q.Name, q.Qtype, f.addrs)
		rotate(out.Answer)
	case dns.TypeSRV:
		x.srv(q, f.srv, out)
	case dns.TypeTXT:
		if f.txt != "" {
			out.Answer = []dns.RR{&dns.TXT{Hdr: x.header(q.Name, dns.TypeTXT), Txt: []string{f.txt}}}
		}
	}
}

// follow answers with a CNAME, and with what it leads to where the cluster knows that.
func (x *Index) follow(question dns.Question, alias string, depth int) Answer {
	out := Answer{Mine: true, Answer: []dns.RR{&dns.CNAME{Hdr: x.header(question.Name, dns.TypeCNAME), Target: alias}}}
	if question.Qtype == dns.TypeCNAME {
		return out
	}
	rel, ok := x.within(alias)
	if !ok {
		out.Chase = alias
		return out
	}
	if depth >= maxAliases {
		return Answer{Mine: true, Rcode: dns.RcodeServerFailure}
	}
	next := x.inside(dns.Question{Name: alias, Qtype: question.Qtype, Qclass: question.Qclass}, rel, depth+1)
	if next.Rcode == dns.RcodeServerFailure {
		return next
	}
	next.Answer = append(out.Answer, next.Answer...)
	return next
}

// srv answers with a record for each target, and with the address of each.
func (x *Index) srv(q dns.Question, all []target, out *Answer) {
	if len(all) == 0 {
		return
	}
	weight := uint16(max(100/len(all), 1)) // at most 100
	rotate(all)
	seen := map[netip.Addr]bool{}
	for _, t := range all {
		srv := &dns.SRV{
			Hdr:    x.header(q.Name, dns.TypeSRV),
			Weight: weight,
			Port:   t.port,
			Target: t.name,
		}
		if !slices.ContainsFunc(out.Answer, func(rr dns.RR) bool { return dns.IsDuplicate(rr, srv) }) {
			out.Answer = append(out.Answer, srv)
		}
		if !seen[t.addr] {
			seen[t.addr] = true
			out.Additional = append(out.Additional, x.host(t.name, t.addr))
		}
	}
}

// apex answers for the domain itself.
func (x *Index) apex(q dns.Question, out *Answer) {
	switch q.Qtype {
	case dns.TypeSOA:
		out.Answer = []dns.RR{x.soa()}
	case dns.TypeNS:
		out.Answer = []dns.RR{&dns.NS{Hdr: x.header(q.Name, dns.TypeNS), Ns: x.server()}}
		own := x.lookup("ns.dns", dns.TypeA)
		for _, a := range own.addrs {
			out.Additional = append(out.Additional, x.host(x.server(), a))
		}
	}
}

// reverseAnswer answers for an address: the names of its owners. A cluster IP leads to its service alone; endpoints
// with a host name hide those without one.
func (x *Index) reverseAnswer(question dns.Question, name string, addr netip.Addr) Answer {
	all := x.owners(addr)
	if len(all) == 0 {
		return Answer{}
	}
	if i := slices.IndexFunc(all, func(o owner) bool { return o.cluster }); i >= 0 {
		all = all[i : i+1]
	} else if slices.ContainsFunc(all, func(o owner) bool { return o.host != "" }) {
		all = slices.DeleteFunc(slices.Clone(all), func(o owner) bool { return o.host == "" })
	}
	out := Answer{Mine: true}
	switch question.Qtype {
	case dns.TypePTR:
	case dns.TypeANY:
		out.Answer = append(out.Answer, &dns.HINFO{Hdr: x.header(question.Name, dns.TypeHINFO), Cpu: "RFC8482"})
		return out
	case dns.TypeAXFR, dns.TypeIXFR:
		return Answer{Mine: true, Rcode: dns.RcodeRefused}
	default:
		soa := x.soa()
		soa.Hdr.Name = name
		out.Authority = []dns.RR{soa}
		return out
	}
	for _, o := range all {
		to := x.fqdn(o.service)
		if !o.cluster {
			to = endpoint{addr: addr, host: o.host}.name() + "." + to
		}
		ptr := &dns.PTR{Hdr: x.header(question.Name, dns.TypePTR), Ptr: to}
		if !slices.ContainsFunc(out.Answer, func(rr dns.RR) bool { return dns.IsDuplicate(rr, ptr) }) {
			out.Answer = append(out.Answer, ptr)
		}
	}
	return out
}

// fqdn is the name of the service "namespace/name".
func (x *Index) fqdn(key string) string {
	ns, name, _ := strings.Cut(key, "/")
	return name + "." + ns + ".svc." + x.domain
}

func (x *Index) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{
		Name:   name,
		Rrtype: rrtype,
		Class:  dns.ClassINET,
		Ttl:    x.ttl,
	}
}

func (x *Index) hosts(name string, qtype uint16, addrs []netip.Addr) []dns.RR {
	out := make([]dns.RR, 0, len(addrs))
	for _, a := range addrs {
		if a.Is4() == (qtype == dns.TypeA) {
			out = append(out, x.host(name, a))
		}
	}
	return out
}

func (x *Index) host(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: x.header(name, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: x.header(name, dns.TypeAAAA), AAAA: a.AsSlice()}
}

func (x *Index) server() string { return "ns.dns." + x.domain }

// soa is the authority of what is not there; its numbers are CoreDNS'.
func (x *Index) soa() *dns.SOA {
	return &dns.SOA{
		Hdr:     x.header(x.domain, dns.TypeSOA),
		Ns:      x.server(),
		Mbox:    "hostmaster." + x.domain,
		Serial:  x.serial.Load(),
		Refresh: 7200,
		Retry:   1800,
		Expire:  86400,
		Minttl:  x.ttl,
	}
}

// rotate makes a list start anywhere: clients take the first.
func rotate[T any](list []T) {
	if len(list) < 2 {
		return
	}
	n := rand.IntN(len(list)) // not a secret
	slices.Reverse(list[:n])
	slices.Reverse(list[n:])
	slices.Reverse(list)
}
