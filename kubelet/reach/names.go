// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/networking/reach"
	"keelson/kubelet/translate"
)

// questionLimit is the time-out of one DNS query. All queries for a name share the probe's time-out.
const questionLimit = 2 * time.Second

// names resolves a name as the pod's resolver does: by its hosts file, then by DNS with its search domains and ndots.
func (p *Prober) names(ctx context.Context, pod *corev1.Pod, asked reach.Asked) (*reach.Names, error) {
	conf, err := p.cfg.Resolver(pod)
	if err != nil {
		return nil, err
	}
	out := &reach.Names{Servers: conf.GetServers(), Searches: conf.GetSearches(), NDots: ndots(conf)}
	if out.Addresses = inHosts(pod, asked.Host, p.cfg.Domain); len(out.Addresses) > 0 {
		out.Hosts = true
		return out, nil
	}
	if len(out.Servers) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no DNS server (dnsPolicy %s)", pod.Namespace, pod.Name,
			pod.Spec.DNSPolicy)
	}
	until := time.Now().Add(asked.Timeout)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for _, c := range candidates(asked.Host, out.Searches, out.NDots) {
		try := ask(ctx, out.Servers[0], c.name, questionLimit)
		try.Search = c.search
		out.Tries = append(out.Tries, try)
		if out.Addresses = try.Addresses; len(out.Addresses) > 0 || ctx.Err() != nil || !time.Now().Before(until) {
			break
		}
	}
	return out, nil
}

func ndots(conf *runtimeapi.DNSConfig) int {
	n := 1
	for _, o := range conf.GetOptions() {
		if v, ok := strings.CutPrefix(o, "ndots:"); ok {
			if i, err := strconv.Atoi(v); err == nil && i >= 0 {
				n = min(i, 15) // the resolver library's most
			}
		}
	}
	return n
}

// inHosts looks a name up in the pod's hosts file.
func inHosts(pod *corev1.Pod, name, domain string) []netip.Addr {
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	var out []netip.Addr
	for line := range strings.Lines(string(translate.Hosts(pod, ips, domain, nil))) {
		f := strings.Fields(line)
		if len(f) < 2 || !slices.ContainsFunc(f[1:], func(n string) bool { return strings.EqualFold(n, name) }) {
			continue
		}
		if a, err := netip.ParseAddr(f[0]); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// candidate is a fully qualified name to query.
type candidate struct{ name, search string }

// candidates are in the resolver's order: a name with fewer dots than ndots is first tried with the search domains.
func candidates(name string, searches []string, ndots int) []candidate {
	if full, ok := strings.CutSuffix(name, "."); ok {
		return []candidate{{full, ""}}
	}
	var out []candidate
	for _, s := range searches {
		out = append(out, candidate{name + "." + s, s})
	}
	if strings.Count(name, ".") >= ndots {
		return append([]candidate{{name, ""}}, out...)
	}
	return append(out, candidate{name, ""})
}

// ask queries a server for A and AAAA records, in the calling thread's network namespace.
func ask(ctx context.Context, server, name string, limit time.Duration) reach.Try {
	begin := time.Now()
	try := reach.Try{Name: name, Server: server}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, t := range []uint16{dns.TypeA, dns.TypeAAAA} {
		in, err := exchange(ctx, server, name, t)
		if err != nil {
			try.Error = err.Error()
			break
		}
		if try.Code == "" || in.Rcode != dns.RcodeSuccess {
			try.Code = dns.RcodeToString[in.Rcode]
		}
		for _, rr := range in.Answer[:min(len(in.Answer), mostRecords)] {
			read(&try, rr)
		}
		if in.Rcode != dns.RcodeSuccess {
			break // the same for every type
		}
	}
	try.Took = time.Since(begin)
	return try
}

// mostRecords bounds the reported records of an answer.
const mostRecords = 64

func read(try *reach.Try, rr dns.RR) {
	var ip net.IP
	switch rr := rr.(type) {
	case *dns.CNAME:
		if to := strings.TrimSuffix(rr.Target, "."); !slices.Contains(try.Aliases, to) {
			try.Aliases = append(try.Aliases, to)
		}
		return
	case *dns.A:
		ip = rr.A
	case *dns.AAAA:
		ip = rr.AAAA
	}
	if a, ok := netip.AddrFromSlice(ip); ok {
		try.Addresses = append(try.Addresses, a.Unmap())
	}
}

// exchange queries by UDP, and by TCP if the answer is truncated.
func exchange(ctx context.Context, server, name string, t uint16) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), t)
	q.SetEdns0(1232, false)
	var in *dns.Msg
	for _, network := range []string{"udp", "tcp"} {
		c, err := (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
		if err != nil {
			return nil, err
		}
		in, err = over(ctx, &dns.Conn{Conn: c}, q)
		_ = c.Close() // what it said has been read
		if err != nil {
			return nil, err
		}
		if !in.Truncated {
			break
		}
	}
	return in, nil
}

func over(ctx context.Context, conn *dns.Conn, msg *dns.Msg) (*dns.Msg, error) {
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return nil, err
		}
	}
	conn.UDPSize = 1232
	if err := conn.WriteMsg(msg); err != nil {
		return nil, err
	}
	for {
		in, err := conn.ReadMsg()
		if err != nil {
			return nil, err
		}
		if in.Id == msg.Id && in.Response {
			return in, nil
		}
	}
}
