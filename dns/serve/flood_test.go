// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestFlood: one client asks as fast as it can, by UDP and with all the connections it gets; another one's questions
// are all answered, by UDP within three attempts: the kernel drops what the socket's buffer has no room for.
func TestFlood(t *testing.T) {
	h := desk(t, "")
	h.limits = newLimits(2000)
	listeners, err := Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, listeners) }() // ends with ctx
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	var flood atomic.Int64
	loud := from(t, "127.0.0.2", "udp", listeners)
	stopped := make(chan struct{})
	go func() { // ends with ctx
		defer close(stopped)
		defer func() { _ = loud.Close() }()
		q := query("web.default.svc.cluster.local.", dns.TypeA)
		for ctx.Err() == nil {
			if _, err := loud.Write(q); err == nil {
				flood.Add(1)
			}
		}
	}()
	for range maxOfClient + 8 {
		conn := from(t, "127.0.0.2", "tcp", listeners)
		defer func() { _ = conn.Close() }()
	}
	lost := 0
	for _, network := range []string{"udp", "tcp"} {
		conn := &dns.Conn{Conn: from(t, "127.0.0.3", network, listeners), UDPSize: 512}
		attempts := map[string]int{"udp": 3, "tcp": 1}[network]
		for range 100 {
			if !answered(t, conn, attempts) {
				lost++
			}
		}
		_ = conn.Close()
	}
	sent := flood.Load()
	cancel()
	<-stopped
	if lost > 0 {
		t.Errorf("during a flood of %d requests %d of another client's 200 were not answered", sent, lost)
	}
	if sent < 10000 {
		t.Logf("the flood was of %d requests only", sent)
	}
}

// answered asks as resolvers do: again when no answer comes.
func answered(t *testing.T, conn *dns.Conn, attempts int) bool {
	t.Helper()
	q := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)
	for range attempts {
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if err := conn.WriteMsg(q); err != nil {
			t.Fatal(err)
		}
		if r, err := conn.ReadMsg(); err == nil && len(r.Answer) == 1 && r.Id == q.Id {
			return true
		}
	}
	return false
}

// from connects from an address of this machine.
func from(t testing.TB, addr, network string, l Listeners) net.Conn {
	t.Helper()
	ip := net.ParseIP(addr)
	d := &net.Dialer{LocalAddr: &net.UDPAddr{IP: ip}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	conn, err := d.DialContext(t.Context(), network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// BenchmarkUDP is a question and its answer by a socket, from 8 clients; client and server share the processors.
func BenchmarkUDP(b *testing.B) {
	h := desk(b, "")
	h.limits = newLimits(1e12)
	listeners, err := Listen(b.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, listeners) }() // ends with ctx
	defer func() {
		cancel()
		<-done
	}()
	const clients = 8
	var mu sync.Mutex
	var all []time.Duration
	b.SetParallelism(clients)
	b.RunParallel(func(pb *testing.PB) {
		conn := from(b, "127.0.0.2", "udp", listeners)
		defer func() { _ = conn.Close() }()
		q := query("web.default.svc.cluster.local.", dns.TypeA)
		buf := make([]byte, 512)
		var took []time.Duration
		for pb.Next() {
			begin := time.Now()
			if _, err := conn.Write(q); err != nil {
				b.Error(err)
			}
			if _, err := conn.Read(buf); err != nil {
				b.Error(err)
			}
			took = append(took, time.Since(begin))
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, took...)
	})
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "answers/s")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}
