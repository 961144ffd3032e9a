// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"keelson/client/clienttest"
	"keelson/network/mesh"
	"keelson/network/nettest"
)

// BenchmarkThroughput compares machine to machine with pod to pod, by a route and through the tunnels: as fast as the
// processor goes, which does the work of both machines, and over links of 1 Gbit/s.
func BenchmarkThroughput(b *testing.B) {
	const gigabit = 1e9 / 8
	b.Run("memory", func(b *testing.B) { throughput(b, 0) })
	b.Run("1Gbit", func(b *testing.B) { throughput(b, gigabit) })
}

// throughput bounds the links where rate is not 0, in bytes a second.
func throughput(b *testing.B, rate uint64) {
	for _, mode := range []mesh.Mode{mesh.Auto, mesh.Tunnel, mesh.WireGuard} {
		sw := nettest.NewSwitch(b, "sw")
		cl := clienttest.New()
		ma := nettest.New(b, "a")
		mb := nettest.New(b, "b")
		for _, c := range []*nettest.Cable{sw.Join(ma, 1500, "10.1.0.11/24"), sw.Join(mb, 1500, "10.1.0.12/24")} {
			if rate != 0 {
				c.Rate(rate)
			}
		}
		x := newNode(b, cl, ma, mode, "10.1.0.11", "10.42.1.0/24")
		y := newNode(b, cl, mb, mode, "10.1.0.12", "10.42.2.0/24")
		podX, onX := x.pod()
		_, beside := x.pod()
		_, onY := y.pod()
		wantReach(b, "a to b", podX, onY[0], onX[0])
		if mode == mesh.Auto {
			sink(mb)
			send(b, "machines", ma, netip.MustParseAddr("10.1.0.12"))
			send(b, "one machine's pods", podX, beside[0])
			send(b, "pods, direct", podX, onY[0])
			continue
		}
		send(b, "pods, "+string(mode), podX, onY[0])
	}
}

func sink(m *nettest.Machine) {
	l := m.Listen("tcp", ":81")
	go func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
}

func send(b *testing.B, name string, from *nettest.Machine, to netip.Addr) {
	b.Run(name, func(b *testing.B) {
		from.Must(func() error {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 81).String(), time.Second)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			buf := make([]byte, 1<<20)
			b.SetBytes(1 << 20)
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
