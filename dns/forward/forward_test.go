// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

var client = netip.MustParseAddr("10.1.0.7")

// world is what servers answer, by address; nil: nothing. It counts questions.
type world struct {
	mu     sync.Mutex
	asked  map[string]int
	answer func(addr, network string, m *dns.Msg) *dns.Msg
}

func (w *world) dial(_ context.Context, network, addr string) (net.Conn, error) {
	here, there := net.Pipe()
	go func() { // ends when the asker closes its end
		defer func() { _ = there.Close() }()
		buf := make([]byte, 4096)
		n, err := there.Read(buf)
		if err != nil {
			return
		}
		packet := buf[:n]
		if network == "tcp" {
			packet = packet[2:]
		}
		m := new(dns.Msg)
		if m.Unpack(packet) != nil {
			return
		}
		w.mu.Lock()
		if m.Question[0].Qtype != dns.TypeHINFO {
			w.asked[addr+" "+network]++
		}
		w.mu.Unlock()
		if r := w.answer(addr, network, m); r != nil {
			b, _ := r.Pack()
			if network == "tcp" {
				b = append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)
			}
			_, _ = there.Write(b)
		}
		_, _ = there.Read(buf)
	}()
	return here, nil
}

func reply(m *dns.Msg, records ...string) *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(m)
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err)
		}
		r.Answer = append(r.Answer, rr)
	}
	return r
}

var (
	one = netip.MustParseAddrPort("192.0.2.1:53")
	two = netip.MustParseAddrPort("192.0.2.2:53")
)

// inWorld runs f with a forwarder that asks one and then two.
func inWorld(t *testing.T, answer func(addr, network string, m *dns.Msg) *dns.Msg, f func(*Forwarder, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{asked: map[string]int{}, answer: answer}
		fw := New(Config{Dial: w.dial})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { // ends with ctx
			defer close(done)
			fw.Run(ctx)
		}()
		synctest.Wait()
		fw.Use([]Route{
			{Domain: ".", Servers: []netip.AddrPort{one, two}},
			{Domain: "corp.example", Servers: []netip.AddrPort{two}},
		})
		f(fw, w)
		cancel()
		<-done
		fw.mu.Lock()
		defer fw.mu.Unlock()
		if len(fw.flights)+len(fw.clients)+fw.waiting != 0 {
			t.Errorf("left behind: %d flights, %d clients, %d waiting", len(fw.flights), len(fw.clients), fw.waiting)
		}
	})
}

func ask(t *testing.T, f *Forwarder, name string) *dns.Msg {
	t.Helper()
	q := Question{Name: name, Type: dns.TypeA, Class: dns.ClassINET}
	r := f.Cached(q)
	if r == nil {
		got := make(chan *Reply, 1)
		if !f.Ask(client, q, func(r *Reply) { got <- r }) {
			t.Fatal("refused")
		}
		r = <-got
	}
	m, err := r.Msg(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCache: an answer is asked for once while it lives, and its TTL goes down.
func TestCache(t *testing.T) {
	inWorld(t, func(_, _ string, m *dns.Msg) *dns.Msg { return reply(m, "a.example. 60 IN A 198.51.100.1") }, func(
		f *Forwarder, w *world,
	) {
		ask(t, f, "a.example.")
		time.Sleep(20 * time.Second)
		if m := ask(t, f, "a.example."); len(m.Answer) != 1 || m.Answer[0].Header().Ttl != 40 {
			t.Errorf("after 20 s: %v", m.Answer)
		}
		time.Sleep(40 * time.Second)
		ask(t, f, "a.example.")
		if n := w.asked[one.String()+" udp"]; n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
	})
}

// TestDenials: what is not there is remembered as its SOA says, within the limit, and without SOA not at all.
func TestDenials(t *testing.T) {
	soa := true
	inWorld(t, func(_, _ string, m *dns.Msg) *dns.Msg {
		r := reply(m)
		r.Rcode = dns.RcodeNameError
		if soa {
			rr, _ := dns.NewRR("example. 3600 IN SOA a. b. 1 2 3 4 3600")
			r.Ns = append(r.Ns, rr)
		}
		return r
	}, func(forwarder *Forwarder, w *world) {
		for range 3 {
			if m := ask(t, forwarder, "no.example."); m.Rcode != dns.RcodeNameError {
				t.Errorf("rcode %d", m.Rcode)
			}
			time.Sleep(longestDenial / 2)
		}
		if n := w.asked[one.String()+" udp"]; n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
		soa = false
		ask(t, forwarder, "nor.example.")
		ask(t, forwarder, "nor.example.")
		if n := w.asked[one.String()+" udp"]; n != 4 {
			t.Errorf("asked %d times, want 4", n)
		}
	})
}

// TestFailover: the second server answers where the first is silent, lies or refuses; a silent one is asked last for a
// while.
func TestFailover(t *testing.T) {
	for name, first := range map[string]func(m *dns.Msg) *dns.Msg{
		"silent": func(*dns.Msg) *dns.Msg { return nil },
		"another id": func(m *dns.Msg) *dns.Msg {
			r := reply(m, "a.example. 60 IN A 203.0.113.66")
			r.Id++
			return r
		},
		"another name": func(m *dns.Msg) *dns.Msg {
			r := reply(m, "a.example. 60 IN A 203.0.113.66")
			r.Question[0].Name = "b.example."
			return r
		},
		"a question": func(m *dns.Msg) *dns.Msg { return m },
		"server failure": func(m *dns.Msg) *dns.Msg {
			r := reply(m)
			r.Rcode = dns.RcodeServerFailure
			return r
		},
		"refused": func(m *dns.Msg) *dns.Msg {
			r := reply(m)
			r.Rcode = dns.RcodeRefused
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(addr, _ string, m *dns.Msg) *dns.Msg {
				if addr == one.String() {
					return first(m)
				}
				return reply(m, "a.example. 60 IN A 198.51.100.1")
			}, func(f *Forwarder, _ *world) {
				begin := time.Now()
				m := ask(t, f, "a.example.")
				if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != "198.51.100.1" ||
					time.Since(begin) > tryLimit {
					t.Errorf("after %s: %v", time.Since(begin), m)
				}
			})
		})
	}
}

// TestNobody: servers that are silent cost askLimit and nothing more, one question however many wait, and each client a
// share.
func TestNobody(t *testing.T) {
	inWorld(t, func(string, string, *dns.Msg) *dns.Msg { return nil }, func(forwarder *Forwarder, w *world) {
		question := Question{Name: "a.example.", Type: dns.TypeA, Class: dns.ClassINET}
		var failed atomic.Int32
		for i := range maxPerClient + 10 {
			if ok := forwarder.Ask(client, question, func(r *Reply) {
				failed.Add(int32(r.Rcode()))
			}); ok != (i < maxPerClient) {
				t.Fatalf("question %d: %t", i, ok)
			}
		}
		if !forwarder.Ask(netip.MustParseAddr("10.1.0.8"), question, func(*Reply) {}) {
			t.Error("another client was refused")
		}
		time.Sleep(askLimit + time.Millisecond)
		synctest.Wait()
		if failed.Load() != maxPerClient*dns.RcodeServerFailure {
			t.Errorf("%d", failed.Load())
		}
		if n := w.asked[one.String()+" udp"]; n > 2 {
			t.Errorf("asked %d times", n)
		}
		if forwarder.Cached(question) == nil {
			t.Error("the failure is not remembered")
		}
	})
}

// TestHanging: while everything that one client asks hangs, what another asks of servers that answer is answered at
// once, and the hanging server's other names after the wait for it, which is not paid again.
func TestHanging(t *testing.T) {
	inWorld(t, func(addr, _ string, m *dns.Msg) *dns.Msg {
		if addr == one.String() || strings.HasPrefix(m.Question[0].Name, "hang") {
			return nil
		}
		return reply(m)
	}, func(forwarder *Forwarder, _ *world) {
		loud := netip.MustParseAddr("10.1.0.66")
		for i := range 2 * maxPerClient {
			q := Question{Name: fmt.Sprintf("hang-%d.example.", i), Type: dns.TypeA, Class: dns.ClassINET}
			if ok := forwarder.Ask(loud, q, func(*Reply) {}); ok != (i < maxPerClient) {
				t.Fatalf("question %d: %t", i, ok)
			}
		}
		begin := time.Now()
		ask(t, forwarder, "a.corp.example.")
		if took := time.Since(begin); took > 0 {
			t.Errorf("a server that answers took %s", took)
		}
		ask(t, forwarder, "a.example.")
		if took := time.Since(begin); took > tryLimit {
			t.Errorf("the second server was asked after %s, want %s", took, tryLimit)
		}
		begin = time.Now()
		ask(t, forwarder, "b.example.")
		if took := time.Since(begin); took > 0 {
			t.Errorf("the wait for a hanging server was paid again: %s", took)
		}
		time.Sleep(askLimit)
		synctest.Wait() // all callers have an answer; inWorld checks that nothing is left
	})
}

// TestTruncated: what UDP has no room for comes by TCP.
func TestTruncated(t *testing.T) {
	inWorld(t, func(_, network string, m *dns.Msg) *dns.Msg {
		r := reply(m, "a.example. 60 IN A 198.51.100.1")
		if r.Truncated = network == "udp"; r.Truncated {
			r.Answer = nil
		}
		return r
	}, func(f *Forwarder, w *world) {
		if m := ask(t, f, "a.example."); len(m.Answer) != 1 || m.Truncated || w.asked[one.String()+" tcp"] != 1 {
			t.Errorf("%v", m)
		}
	})
}

// TestStubs: a domain's own servers are asked, and no others.
func TestStubs(t *testing.T) {
	inWorld(t, func(_, _ string, m *dns.Msg) *dns.Msg { return reply(m) }, func(f *Forwarder, w *world) {
		ask(t, f, "x.corp.example.")
		ask(t, f, "xcorp.example.")
		if w.asked[two.String()+" udp"] != 1 || w.asked[one.String()+" udp"] != 1 {
			t.Errorf("%v", w.asked)
		}
	})
}

// TestLoop: a server that asks us what we ask it is not asked any more.
func TestLoop(t *testing.T) {
	var f2 *Forwarder
	looped := 0
	synctest.Test(t, func(t *testing.T) {
		w := &world{asked: map[string]int{}}
		w.answer = func(addr, _ string, m *dns.Msg) *dns.Msg {
			if addr == one.String() && f2.Probe(m.Question[0].Name) {
				return nil
			}
			return reply(m, "a.example. 60 IN A 198.51.100.1")
		}
		f2 = New(Config{
			Dial: w.dial,
			Looped: func(a netip.AddrPort) {
				if a == one {
					looped++
				}
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { // ends with ctx
			defer close(done)
			f2.Run(ctx)
		}()
		f2.Use([]Route{{Domain: ".", Servers: []netip.AddrPort{one, two}}})
		synctest.Wait()
		ask(t, f2, "a.example.")
		if looped != 1 || w.asked[one.String()+" udp"] != 0 || w.asked[two.String()+" udp"] != 1 {
			t.Errorf("looped %d, asked %v", looped, w.asked)
		}
		cancel()
		<-done
	})
}

// FuzzAccept: what servers send is read or refused.
func FuzzAccept(f *testing.F) {
	asked, wire, err := query(Question{Name: "a.example.", Type: dns.TypeA, Class: dns.ClassINET}, true)
	if err != nil {
		f.Fatal(err)
	}
	asked.Id = 1
	f.Add(wire)
	b, _ := reply(asked, "a.example. 60 IN A 198.51.100.1", "a.example. 60 IN CNAME b.a.example.").Pack()
	f.Add(b)
	// An authority record SOA without data.
	f.Add(
		[]byte(
			"\x00\x01\x81\x80\x00\x01\x00\x00\x00\x01\x00\x00\x01a\x07example\x00\x00\x01\x00\x01\x00\x00\x06\x00\x01\x00\x00\x00\x3c\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := accept(asked, b)
		if err != nil {
			return
		}
		r, err := keep(m, time.Now())
		if err != nil {
			return
		}
		if _, err := r.Msg(time.Now()); err != nil {
			t.Fatalf("%x: kept as %x, which cannot be read: %v", b, r.wire, err)
		}
	})
}
