// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// zone answers queries from a table of records. Answers to names that start with "big" do not fit into UDP.
type zone map[string][]dnsmessage.ResourceBody

func (z zone) answer(t *testing.T, query []byte, udp bool) []byte {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		t.Errorf("query: %v", err)
		return nil
	}
	question := message.Questions[0]
	message.Response = true
	records, ok := z[question.Name.String()]
	switch {
	case strings.HasPrefix(question.Name.String(), "broken"):
		message.RCode = dnsmessage.RCodeServerFailure
	case !ok:
		message.RCode = dnsmessage.RCodeNameError
	case udp && strings.HasPrefix(question.Name.String(), "big"):
		message.Truncated = true
		records = nil
	}
	for _, r := range records {
		if kind := typeOf(r); kind == question.Type || kind == dnsmessage.TypeCNAME {
			message.Answers = append(message.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class},
				Body:   r,
			})
		}
	}
	packed, err := message.Pack()
	if err != nil {
		t.Errorf("answer: %v", err)
	}
	return packed
}

func typeOf(r dnsmessage.ResourceBody) dnsmessage.Type {
	switch r.(type) {
	case *dnsmessage.AResource:
		return dnsmessage.TypeA
	case *dnsmessage.AAAAResource:
		return dnsmessage.TypeAAAA
	case *dnsmessage.CNAMEResource:
		return dnsmessage.TypeCNAME
	case *dnsmessage.MXResource:
		return dnsmessage.TypeMX
	case *dnsmessage.NSResource:
		return dnsmessage.TypeNS
	case *dnsmessage.PTRResource:
		return dnsmessage.TypePTR
	case *dnsmessage.SOAResource:
		return dnsmessage.TypeSOA
	case *dnsmessage.SRVResource:
		return dnsmessage.TypeSRV
	}
	return dnsmessage.TypeTXT
}

// serve answers on a loopback port, over UDP and TCP. Before each answer over UDP it sends a forged one.
func (z zone) serve(t *testing.T) (addr string) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tcp.Close()
		_ = udp.Close()
	})
	go func() { // ends when the socket is closed
		buf := make([]byte, 512)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			reply := z.answer(t, buf[:n], true)
			forged := append([]byte{reply[0] ^ 1}, reply[1:]...)
			_, _ = udp.WriteTo(forged, from)
			_, _ = udp.WriteTo(reply, from)
		}
	}()
	go func() { // ends when the listener is closed
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			var size [2]byte
			if _, err := io.ReadFull(conn, size[:]); err == nil {
				query := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(conn, query); err == nil {
					reply := z.answer(t, query, false)
					_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
				}
			}
			_ = conn.Close()
		}
	}()
	return tcp.Addr().String()
}

func TestNslookup(t *testing.T) {
	name := dnsmessage.MustNewName
	z := zone{
		"web.default.svc.cluster.local.": {&dnsmessage.AResource{A: [4]byte{10, 43, 0, 7}}},
		"dual.default.svc.cluster.local.": {&dnsmessage.AResource{A: [4]byte{10, 43, 0, 8}}, &dnsmessage.AAAAResource{
			AAAA: netip.MustParseAddr("fd00::8").As16(),
		}},
		"alias.default.svc.cluster.local.": {&dnsmessage.CNAMEResource{CNAME: name("example.org.")}},
		"_http._tcp.web.default.svc.cluster.local.": {
			&dnsmessage.SRVResource{
				Priority: 0,
				Weight:   100,
				Port:     80,
				Target:   name("web.default.svc.cluster.local."),
			},
		},
		"example.org.": {
			&dnsmessage.TXTResource{TXT: []string{"one", "t\"wo"}}, &dnsmessage.MXResource{
				Pref: 5,
				MX:   name("mail.example.org."),
			},
			&dnsmessage.NSResource{NS: name("ns.example.org.")},
		},
		"7.0.43.10.in-addr.arpa.": {&dnsmessage.PTRResource{PTR: name("web.default.svc.cluster.local.")}},
		"8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.": {
			&dnsmessage.PTRResource{PTR: name("dual.default.svc.cluster.local.")},
		},
		"big.org.":    {&dnsmessage.AResource{A: [4]byte{10, 0, 0, 1}}},
		"broken.org.": nil,
	}
	addr := z.serve(t)
	host, _, _ := net.SplitHostPort(addr)
	r := resolver{
		servers: []string{addr},
		search:  []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"},
		ndots:   5,
		timeout: 5 * time.Second,
	}
	for args, want := range map[string]string{
		"web":                            "Name:\tweb.default.svc.cluster.local\nAddress: 10.43.0.7\n",
		"web.default":                    "Name:\tweb.default.svc.cluster.local\nAddress: 10.43.0.7\n",
		"web.default.svc.cluster.local.": "Name:\tweb.default.svc.cluster.local\nAddress: 10.43.0.7\n",
		"-type=A dual":                   "Name:\tdual.default.svc.cluster.local\nAddress: 10.43.0.8\n",
		"-query=aaaa dual":               "Name:\tdual.default.svc.cluster.local\nAddress: fd00::8\n",
		"dual": "Name:\tdual.default.svc.cluster.local\nAddress: " +
			"10.43.0.8\nName:\tdual.default.svc.cluster.local\nAddress: fd00::8\n",
		"alias": "alias.default.svc.cluster.local\tcanonical name = example.org\n",
		"-type=SRV _http._tcp.web": "_http._tcp.web.default.svc.cluster.local\tservice = 0 100 80 " +
			"web.default.svc.cluster.local\n",
		"-type=txt example.org":              "example.org\ttext = \"one\" \"t\\\"wo\"\n",
		"-type=mx example.org":               "example.org\tmail exchanger = 5 mail.example.org\n",
		"-q=ns example.org":                  "example.org\tnameserver = ns.example.org\n",
		"10.43.0.7":                          "7.0.43.10.in-addr.arpa\tname = web.default.svc.cluster.local\n",
		"fd00::8":                            "8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa\tname = dual.default.svc.cluster.local\n",
		"-type=PTR 7.0.43.10.in-addr.arpa":   "7.0.43.10.in-addr.arpa\tname = web.default.svc.cluster.local\n",
		"big.org":                            "Name:\tbig.org\nAddress: 10.0.0.1\n",
		"!nobody":                            "** server can't find nobody: NXDOMAIN\n",
		"!nobody.default.svc.cluster.local.": "** server can't find nobody.default.svc.cluster.local: NXDOMAIN\n",
		"!-type=mx web.default.svc.cluster.local.": "*** Can't find web.default.svc.cluster.local: No answer\n",
		"!broken.org.": "** server can't find broken.org: SERVFAIL\n",
	} {
		args, fails := strings.CutPrefix(args, "!")
		call, err := parseLookup(append([]string{"nslookup"}, strings.Fields(args)...))
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		var out, errOut strings.Builder
		code := r.print(call, stdio{nil, &out, &errOut})
		want = "Server:\t\t" + host + "\nAddress:\t" + addr + "\n\n" + want + "\n"
		if out.String() != want || errOut.Len() > 0 || code != map[bool]int{false: 0, true: 1}[fails] {
			t.Errorf("%s: got %q, %q and %d, want %q", args, out.String(), errOut.String(), code, want)
		}
	}
	if out, _, code := run(t, "", "nslookup", "big.org.", addr); code != 0 ||
		!strings.Contains(out, "Address: 10.0.0.1\n") {
		t.Errorf("nslookup with a server: got %q and %d", out, code)
	}
}

func TestNslookupComplains(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	r := resolver{servers: []string{silent.LocalAddr().String()}, timeout: 10 * time.Millisecond}
	var out strings.Builder
	if code := r.print(lookupCall{name: "x", types: []dnsmessage.Type{dnsmessage.TypeA}},
		stdio{nil, &out, &out}); code != 1 || !strings.Contains(out.String(), "no servers could be reached") {
		t.Errorf("a silent server: got %q and %d", out.String(), code)
	}
	out.Reset()
	for _, name := range []string{"a..b", strings.Repeat("x", 64), strings.Repeat("x.", 200)} {
		if code := r.print(lookupCall{name: name, types: []dnsmessage.Type{dnsmessage.TypeA}},
			stdio{nil, &out, &out}); code != 1 || !strings.Contains(out.String(), "is not a name") {
			t.Errorf("%s: got %q and %d", name, out.String(), code)
		}
	}
	wantComplaints(t, [][2]string{
		{`nslookup`, "usage: nslookup"},
		{`nslookup a b c`, "usage: nslookup"},
		{`nslookup -type=X a`, `type "X" is not known`},
		{`nslookup -debug a`, "option -debug is not known"},
	})
}

func TestResolvConf(t *testing.T) {
	r := resolver{ndots: 1}
	text := "# comment\nnameserver 10.43.0.10\nnameserver fd00::10\nnameserver 1\nnameserver 2\nsearch a.b " +
		"c.\noptions timeout:1 ndots:2\nnameserver\n"
	if err := r.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.servers, " "); got != "10.43.0.10:53 [fd00::10]:53 1:53" {
		t.Errorf("servers: got %s", got)
	}
	for name, want := range map[string]string{
		"x":     "x.a.b. x.c. x.",
		"x.y":   "x.y.a.b. x.y.c. x.y.",
		"x.y.z": "x.y.z. x.y.z.a.b. x.y.z.c.",
		"x.":    "x.",
	} {
		if got := strings.Join(r.candidates(name), " "); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if r, err := readResolver(t.TempDir() + "/missing"); err != nil || len(r.servers) != 1 ||
		r.servers[0] != "127.0.0.1:53" {
		t.Errorf("no resolv.conf: got %+v, %v", r, err)
	}
}
