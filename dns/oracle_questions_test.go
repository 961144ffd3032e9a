// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// question is asked in one way: "" by UDP with recursion desired, else as how says.
type question struct {
	name, how string
	qtype     uint16
}

func (q question) String() string {
	return strings.TrimSpace(q.name + " " + mdns.TypeToString[q.qtype] + " " + q.how)
}

// ways of asking.
var ways = map[string]func(*mdns.Msg){
	"":      func(*mdns.Msg) {},
	"tcp":   func(*mdns.Msg) {},
	"nord":  func(m *mdns.Msg) { m.RecursionDesired = false },
	"edns":  func(m *mdns.Msg) { m.SetEdns0(1232, false) },
	"do":    func(m *mdns.Msg) { m.SetEdns0(4096, true) },
	"small": func(m *mdns.Msg) { m.SetEdns0(512, false) },
	"cd":    func(m *mdns.Msg) { m.CheckingDisabled = true },
	"ad":    func(m *mdns.Msg) { m.AuthenticatedData = true },
	"chaos": func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS },
}

var everyType = []uint16{
	mdns.TypeA, mdns.TypeAAAA, mdns.TypeSRV, mdns.TypeTXT, mdns.TypeCNAME, mdns.TypeMX, mdns.TypeNS, mdns.TypeSOA,
	mdns.TypePTR, mdns.TypeHTTPS,
	mdns.TypeSVCB, mdns.TypeNAPTR, mdns.TypeCAA, mdns.TypeDS, mdns.TypeDNSKEY, mdns.TypeANY, mdns.TypeAXFR,
}

// asker collects questions, each once.
type asker struct {
	list []question
	seen map[question]bool
}

func (a *asker) ask(name string, types ...uint16) {
	for _, t := range types {
		a.how(name, t, "")
	}
}

func (a *asker) how(name string, qtype uint16, ways ...string) {
	for _, w := range ways {
		q := question{mdns.Fqdn(name), w, qtype}
		if !a.seen[q] {
			a.seen[q] = true
			a.list = append(a.list, q)
		}
	}
}

const (
	typeA, typeAAAA, typeSRV, typeTXT, typePTR = mdns.TypeA, mdns.TypeAAAA, mdns.TypeSRV, mdns.TypeTXT, mdns.TypePTR
)

// questions are all that can be asked about objects, and about what is not there.
func questions(objects []runtime.Object) []question {
	a := &asker{seen: map[question]bool{}}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			a.service(o)
		case *discoveryv1.EndpointSlice:
			a.slice(o)
		case *corev1.Namespace:
			a.namespace(o.Name)
		}
	}
	a.namespace("nowhere")
	a.apex()
	for _, name := range []string{
		"four.shop.svc.cluster.local", "hollow.shop.svc.cluster.local", "nosuch.shop.svc.cluster.local",
		"wide.shop.svc.cluster.local", "outside.shop.svc.cluster.local", "www.example.com", "missing.example.com",
	} {
		for _, w := range []string{"tcp", "nord", "edns", "do", "small", "cd", "ad", "chaos"} {
			a.how(name, typeA, w)
			a.how(name, typeSRV, w)
		}
	}
	return a.list
}

func (a *asker) service(svc *corev1.Service) {
	name := svc.Name + "." + svc.Namespace + ".svc.cluster.local"
	a.ask(name, everyType...)
	a.ask(strings.ToUpper(svc.Name)+"."+svc.Namespace+".SVC.cluster.LOCAL", typeA, typeSRV, mdns.TypeMX)
	for _, servicePort := range svc.Spec.Ports {
		proto := strings.ToLower(string(servicePort.Protocol))
		if proto == "" {
			proto = "tcp"
		}
		at := "_" + servicePort.Name + "._" + proto + "." + name
		if servicePort.Name != "" {
			a.ask(servicePort.Name+"."+proto+"."+name, typeSRV)
		}
		a.ask(at, typeSRV, typeA, typeAAAA, typeTXT, mdns.TypeHTTPS)
		a.ask(strings.ToUpper(at), typeSRV)
		for _, other := range []string{"tcp", "udp", "sctp", "http"} {
			a.ask("_"+servicePort.Name+"._"+other+"."+name, typeSRV)
		}
		a.ask("_nosuch._"+proto+"."+name, typeSRV, typeA)
		a.ask("_"+proto+"."+name, typeSRV, typeA)
		a.ask(fmt.Sprintf("_%d._%s.%s", servicePort.Port, proto, name), typeSRV)
		a.ask("a."+at, typeSRV)
	}
	for _, below := range []string{"nosuch.", "*.", "a.b.", "a.b.c.", "_tcp.", "_sctp.", "_._tcp."} {
		a.ask(below+name, typeA, typeSRV, typeTXT)
	}
	for _, ip := range svc.Spec.ClusterIPs {
		a.address(ip)
	}
	if len(svc.Spec.ClusterIPs) == 0 {
		a.address(svc.Spec.ClusterIP)
	}
	for _, ip := range svc.Spec.ExternalIPs {
		a.address(ip)
	}
}

func (a *asker) slice(s *discoveryv1.EndpointSlice) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		return // CoreDNS has a name with an empty label for it, which it cannot send
	}
	name := service + "." + s.Namespace + ".svc.cluster.local"
	for i := range s.Endpoints[:min(len(s.Endpoints), 6)] {
		endpoint := &s.Endpoints[i]
		labels := []string{strings.NewReplacer(".", "-", ":", "-").Replace(endpoint.Addresses[0])}
		labels = append(labels, labels[0]+"0")
		if endpoint.Hostname != nil {
			labels = append(labels, *endpoint.Hostname)
		}
		for _, l := range labels {
			a.ask(l+"."+name, typeA, typeAAAA, typeSRV, typeTXT, mdns.TypeCNAME, mdns.TypeANY)
			a.ask("_http._tcp."+l+"."+name, typeSRV, typeA)
			a.ask(strings.ToUpper(l)+"."+name, typeA)
		}
		a.address(endpoint.Addresses[0])
	}
}

func (a *asker) address(text string) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return
	}
	back, _ := mdns.ReverseAddr(text)
	a.ask(back, typePTR, typeA, typeTXT, mdns.TypeSOA, mdns.TypeNS, mdns.TypeANY, typeSRV)
	a.ask(strings.ToUpper(back), typePTR)
	if ip.Is4() {
		_, upper, _ := strings.Cut(back, ".")
		a.ask(upper, typePTR, mdns.TypeSOA)
	}
}

func (a *asker) namespace(ns string) {
	for _, name := range []string{"svc", "pod"} {
		at := ns + "." + name + ".cluster.local"
		a.ask(at, typeA, typeSRV, typeTXT, mdns.TypeNS, mdns.TypeSOA, mdns.TypeANY)
		a.ask("*."+at, typeA)
		a.ask("nosuch."+at, typeA, typeAAAA, typeSRV, typeTXT)
	}
	for _, pod := range []string{
		"10-1-0-1", "10-1-0-256", "10-1-0", "10-1-0-1-2", "1-2-3-4", "fd00--1", "fd00-1--2-3", "fd00-0-0-0-0-0-0-1",
		"--1", "--", "abcd", "10-01-0-1", "--ffff-10-1-0-1", "0-0-0-0",
	} {
		at := pod + "." + ns + ".pod.cluster.local"
		a.ask(at, typeA, typeAAAA)
		a.ask(at, typeSRV, typeTXT)
		a.ask("a."+at, typeA)
	}
}

// apex asks for what belongs to no one.
func (a *asker) apex() {
	// Not NS and ns.dns: CoreDNS answers with the machine's own addresses.
	a.ask("cluster.local", slices.DeleteFunc(slices.Clone(everyType), func(t uint16) bool {
		return t == mdns.TypeNS
	})...)
	a.ask("dns-version.cluster.local", everyType...)
	a.ask("DNS-Version.Cluster.Local", typeTXT)
	for _, name := range []string{
		"svc.cluster.local", "pod.cluster.local", "dns.cluster.local", "node.cluster.local",
		"a.dns-version.cluster.local", "a.ns.dns.cluster.local", "xcluster.local", "local", "x.local",
		"*.cluster.local", "four.shop.cluster.local",
	} {
		a.ask(name, typeA, typeSRV, typeTXT, mdns.TypeSOA, mdns.TypeNS, mdns.TypeANY)
	}
	for _, name := range []string{
		"www.example.com", "missing.example.com", ".", "1.2.0.192.in-addr.arpa", "in-addr.arpa", "ip6.arpa",
		"10.in-addr.arpa", "1.ip6.arpa", "256.0.0.10.in-addr.arpa", "x.1.1.96.10.in-addr.arpa",
	} {
		a.ask(name, typeA, typeTXT, typePTR, mdns.TypeSOA, mdns.TypeHTTPS)
	}
}

// interview asks all questions at addr.
func interview(t *testing.T, addr string, questions []question) map[question]string {
	t.Helper()
	out := map[question]string{}
	for _, q := range questions {
		m := new(mdns.Msg).SetQuestion(q.name, q.qtype)
		ways[q.how](m)
		c := &mdns.Client{Timeout: 5 * time.Second}
		if q.how == "tcp" || q.qtype == mdns.TypeAXFR {
			c.Net = "tcp"
		}
		r, _, err := c.Exchange(m, addr)
		if err != nil {
			t.Errorf("%s: %v", q, err)
			continue
		}
		out[q] = format(q, r)
	}
	return out
}

// clusterSOA is written (soa).
const clusterSOA = "cluster.local. 5 SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"

// format writes an answer in a line: code and flags; answer; authority; additional. Records of a section are in order
// but for those of a chain, the question's name is @, and the serial number of a SOA, which is a time, is 1.
func format(q question, msg *mdns.Msg) string {
	out := []string{mdns.RcodeToString[msg.Rcode]}
	for _, f := range []struct {
		name string
		on   bool
	}{{"aa", msg.Authoritative}, {"tc", msg.Truncated}, {"rd", msg.RecursionDesired}, {"ra", msg.RecursionAvailable}, {
		"ad", msg.AuthenticatedData,
	}, {"cd", msg.CheckingDisabled}} {
		if f.on {
			out = append(out, f.name)
		}
	}
	if o := msg.IsEdns0(); o != nil {
		out = append(out, fmt.Sprintf("opt:%d", o.UDPSize()))
		if o.Do() {
			out = append(out, "do")
		}
	}
	for _, section := range [][]mdns.RR{msg.Answer, msg.Ns, msg.Extra} {
		var lines []string
		chain := false
		for _, rr := range section {
			switch rr := rr.(type) {
			case *mdns.OPT:
				continue
			case *mdns.SOA:
				if rr.Serial > 1e9 {
					rr.Serial = 1
				}
			case *mdns.CNAME:
				chain = true
			}
			name := rr.Header().Name
			if name == q.name {
				name = "@"
			}
			text := strings.Fields(strings.TrimPrefix(rr.String(), rr.Header().Name))
			lines = append(lines, name+" "+strings.Join(slices.Delete(text, 1, 2), " "))
		}
		if !chain {
			slices.Sort(lines)
		}
		if msg.Truncated && len(lines) > 2 {
			lines = []string{"..."}
		}
		out = append(out, "|")
		out = append(out, strings.Join(lines, ", "))
	}
	s := strings.Join(out, " ")
	s = strings.ReplaceAll(s, clusterSOA, "(soa)")
	return strings.TrimRight(strings.ReplaceAll(s, "|  ", "| "), "| ")
}

// golden writes answers: below each name, its types with the same answer in one line.
func golden(questions []question, answers map[question]string) string {
	var out strings.Builder
	out.WriteString("# What CoreDNS answers about testdata/cluster.yaml: code and flags | answer | authority | " +
		"additional. TestCoreDNS writes it with -update.\n")
	for i := 0; i < len(questions); {
		n := i
		for n < len(questions) && questions[n].name == questions[i].name {
			n++
		}
		fmt.Fprintf(&out, "%s\n", questions[i].name)
		var order []string
		by := map[string][]string{}
		for _, q := range questions[i:n] {
			s := answers[q]
			if by[s] == nil {
				order = append(order, s)
			}
			by[s] = append(by[s], strings.TrimSuffix(mdns.TypeToString[q.qtype]+"/"+q.how, "/"))
		}
		for _, s := range order {
			fmt.Fprintf(&out, "  %s: %s\n", strings.Join(by[s], ","), s)
		}
		i = n
	}
	return out.String()
}

// recorded reads what golden has written.
func recorded(t *testing.T) map[question]string {
	t.Helper()
	raw, err := os.ReadFile(goldenFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	out := map[question]string{}
	name := ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if !strings.HasPrefix(line, "  ") {
			name = line
			continue
		}
		types, answer, _ := strings.Cut(strings.TrimPrefix(line, "  "), ": ")
		for text := range strings.SplitSeq(types, ",") {
			kind, how, _ := strings.Cut(text, "/")
			out[question{name, how, mdns.StringToType[kind]}] = answer
		}
	}
	return out
}
