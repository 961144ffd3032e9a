// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/dns/forward"
	"keelson/dns/settings"
	"keelson/dns/zone"
)

var pod = netip.MustParseAddr("10.1.0.7")

// desk is a handler of a small cluster; no one else is asked.
func desk(t testing.TB, config string) *Handler {
	t.Helper()
	index := zone.New("cluster.local", 5)
	index.SetNamespace("default")
	index.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "web",
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.5"},
	})
	index.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"},
		Spec:       corev1.ServiceSpec{ClusterIP: "None"},
	})
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default",
		Name:      "many-1",
		Labels:    map[string]string{discoveryv1.LabelServiceName: "many"},
	}}
	for i := range 200 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.1.%d", i)}})
	}
	index.SetSlice(s)
	index.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.example"},
	})
	c, err := settings.Parse([]byte(config), "cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Zone:     index,
		Forward:  forward.New(forward.Config{}),
		Settings: func() *settings.Settings { return c },
		TTL:      5,
	})
}

func exchange(t testing.TB, h *Handler, packet []byte, tcp bool) *dns.Msg {
	t.Helper()
	var out []byte
	if !h.Serve(packet, pod, tcp, func(b []byte) { out = append([]byte(nil), b...) }) {
		return nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(out); err != nil {
		t.Fatalf("answer %x: %v", out, err)
	}
	return m
}

func query(name string, qtype uint16, edit ...func(*dns.Msg)) []byte {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.Id = 4711
	for _, e := range edit {
		e(m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// TestProtocol: what DNS requires of every server, apart from names.
func TestProtocol(t *testing.T) {
	handler := desk(t, "")
	edns := func(size uint16) func(*dns.Msg) { return func(m *dns.Msg) { m.SetEdns0(size, true) } }
	for name, c := range map[string]struct {
		packet []byte
		tcp    bool
		want   string
	}{
		"plain":      {query("web.default.svc.cluster.local.", dns.TypeA), false, "NOERROR qr aa rd ra 1"},
		"upper case": {query("WEB.default.svc.cluster.local.", dns.TypeA), false, "NOERROR qr aa rd ra 1"},
		"edns": {
			query("web.default.svc.cluster.local.", dns.TypeA, edns(4096)), false, "NOERROR qr aa rd ra 1 opt 1232 do",
		},
		"edns version 1": { // BADVERS has the same number
			query("web.default.svc.cluster.local.", dns.TypeA, edns(4096), func(m *dns.Msg) {
				m.IsEdns0().SetVersion(1)
			}), false, "BADSIG qr rd ra 0 opt 1232 do"},
		"two opts": {query("web.default.svc.cluster.local.", dns.TypeA, edns(4096), func(m *dns.Msg) {
			m.Extra = append(m.Extra, m.Extra[0])
		}), false, "FORMERR qr rd ra 0 opt 1232 do"},
		"chaos": {query("version.bind.", dns.TypeTXT, func(m *dns.Msg) {
			m.Question[0].Qclass = dns.ClassCHAOS
		}), false, "REFUSED qr rd ra 0"},
		"unknown class": {query("web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) {
			m.Question[0].Qclass = 77
		}), false, "REFUSED qr rd ra 0"},
		"two questions": {query("web.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) {
			m.Question = append(m.Question, m.Question[0])
		}), false, "FORMERR qr rd 0"},
		"no question": {query("a.", dns.TypeA, func(m *dns.Msg) { m.Question = nil }), false, "FORMERR qr rd 0"},
		"update": {
			query("a.", dns.TypeA, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), false, "NOTIMP qr rd 0",
		},
		"transfer":      {query("cluster.local.", dns.TypeAXFR), true, "REFUSED qr rd ra 0"},
		"any":           {query("web.default.svc.cluster.local.", dns.TypeANY), false, "NOERROR qr aa rd ra 1"},
		"any elsewhere": {query("example.com.", dns.TypeANY), false, "NOERROR qr rd ra 1"},
		"type OPT":      {query("a.", dns.TypeOPT), false, "FORMERR qr rd ra 0"},
		"root":          {query(".", dns.TypeANY), false, "NOERROR qr rd ra 1"},
		"too much":      {query("many.default.svc.cluster.local.", dns.TypeA), false, "NOERROR qr aa tc rd ra 29"},
		"too much, edns": {
			query("many.default.svc.cluster.local.", dns.TypeA, edns(1232)), false,
			"NOERROR qr aa tc rd ra 73 opt 1232 do",
		},
		"too much, by TCP": {query("many.default.svc.cluster.local.", dns.TypeA), true, "NOERROR qr aa rd ra 200"},
		"not recursive": {query("example.com.", dns.TypeA, func(m *dns.Msg) {
			m.RecursionDesired = false
		}), false, "REFUSED qr ra 0"},
		"no upstream": {query("example.com.", dns.TypeA), false, "SERVFAIL qr rd ra 0"},
		"response":    {query("a.", dns.TypeA, func(m *dns.Msg) { m.Response = true }), false, "nothing"},
		"short":       {[]byte{1, 2, 3}, false, "nothing"},
		"cut":         {query("web.default.svc.cluster.local.", dns.TypeA)[:20], false, "FORMERR qr rd 0"},
		"names in a ring": {
			append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0xc0, 12, 0, 1, 0, 1), false, "FORMERR qr rd 0",
		},
	} {
		got := "nothing"
		if m := exchange(t, handler, c.packet, c.tcp); m != nil {
			got = summary(m)
			if m.Id != binary.BigEndian.Uint16(c.packet) {
				t.Errorf("%s: id %d", name, m.Id)
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func summary(msg *dns.Msg) string {
	out := dns.RcodeToString[msg.Rcode]
	for _, f := range []struct {
		on   bool
		name string
	}{{msg.Response, "qr"}, {msg.Authoritative, "aa"}, {msg.Truncated, "tc"}, {msg.RecursionDesired, "rd"}, {
		msg.RecursionAvailable, "ra",
	}} {
		if f.on {
			out += " " + f.name
		}
	}
	out += fmt.Sprint(" ", len(msg.Answer))
	if o := msg.IsEdns0(); o != nil {
		if msg.Rcode == 0 && o.ExtendedRcode() != 0 {
			out = dns.RcodeToString[o.ExtendedRcode()] + out[len("NOERROR"):]
		}
		out += fmt.Sprint(" opt ", o.UDPSize())
		if o.Do() {
			out += " do"
		}
	}
	return out
}

// TestHosts: what the configuration says comes first, also behind an ExternalName.
func TestHosts(t *testing.T) {
	h := desk(t, "hosts: {db.example: [192.0.2.1, 'fd00::1']}")
	for q, want := range map[string]string{
		"DB.example. A":                    "192.0.2.1",
		"db.example. AAAA":                 "fd00::1",
		"db.example. MX":                   "",
		"1.2.0.192.in-addr.arpa. PTR":      "db.example.",
		"ext.default.svc.cluster.local. A": "db.example. 192.0.2.1",
	} {
		name, qtype, _ := strings.Cut(q, " ")
		var got []string
		m := exchange(t, h, query(name, dns.StringToType[qtype]), false)
		for _, rr := range m.Answer {
			f := strings.Fields(rr.String())
			got = append(got, f[len(f)-1])
		}
		if strings.Join(got, " ") != want || m.Rcode != 0 {
			t.Errorf("%s: %s %q, want %q", q, dns.RcodeToString[m.Rcode], got, want)
		}
	}
}

// TestStrangers: a client outside the cluster gets no answer, and one that asks too much gets none for a while.
func TestStrangers(t *testing.T) {
	h := desk(t, "")
	h.cfg.Allowed = func(a netip.Addr) bool { return a == pod }
	q := query("web.default.svc.cluster.local.", dns.TypeA)
	if h.Serve(q, netip.MustParseAddr("192.0.2.9"), false, func([]byte) { t.Error("a stranger was answered") }) {
		t.Error("a stranger is served")
	}
	h.limits = newLimits(10)
	served := 0
	for range 1000 {
		if h.Serve(q, pod, false, func([]byte) {}) {
			served++
		}
	}
	if served < 20 || served > 30 {
		t.Errorf("%d requests of a flood were served, want 20 and what comes meanwhile", served)
	}
}

// FuzzServe: no packet makes the server fail, and each answer can be read, repeats the id, and fits.
func FuzzServe(f *testing.F) {
	f.Add(query("web.default.svc.cluster.local.", dns.TypeA), false)
	f.Add(query("many.default.svc.cluster.local.", dns.TypeSRV, func(m *dns.Msg) { m.SetEdns0(600, true) }), false)
	f.Add(query("5.0.96.10.in-addr.arpa.", dns.TypePTR), true)
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1}, false)
	h := desk(f, "hosts: {db.example: [192.0.2.1]}")
	h.limits = newLimits(1e12)
	f.Fuzz(func(t *testing.T, packet []byte, tcp bool) {
		n := 0
		served := h.Serve(packet, pod, tcp, func(b []byte) {
			n++
			m := new(dns.Msg)
			if err := m.Unpack(b); err != nil {
				t.Fatalf("answer %x to %x: %v", b, packet, err)
			}
			if m.Id != binary.BigEndian.Uint16(packet) || !m.Response {
				t.Fatalf("answer %v to %x", m, packet)
			}
			if !tcp && len(b) > ednsSize {
				t.Fatalf("answer of %d bytes", len(b))
			}
		})
		if served != (n == 1) {
			t.Fatalf("served %t, %d answers", served, n)
		}
	})
}

func BenchmarkServe(b *testing.B) {
	h := desk(b, "")
	h.limits = newLimits(1e12)
	for _, name := range []string{"web.default.svc.cluster.local.", "www.example.com.default.svc.cluster.local."} {
		q := query(name, dns.TypeA)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.Serve(q, pod, false, func([]byte) {})
			}
		})
	}
}
