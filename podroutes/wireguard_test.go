// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/client/clienttest"
	"keelson/network/mesh"
	"keelson/network/nettest"
)

// secret is what no one on the wire may read.
var secret = []byte("attack at dawn, never said in clear")

// wire counts the frames that pass a switch: those with the secret, and those that WireGuard sends.
type wire struct{ clear, sealed atomic.Int64 }

func listen(t *testing.T, sw *nettest.Switch) *wire {
	t.Helper()
	w := &wire{}
	var fd int
	sw.Machine().Must(func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() { // ends with the test
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, _, err := unix.Recvfrom(fd, b, 0)
			switch {
			case err != nil:
			case bytes.Contains(b[:n], secret):
				w.clear.Add(1)
			case isWireGuard(b[:n]):
				w.sealed.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-ended
		_ = unix.Close(fd)
	})
	return w
}

// isWireGuard reports whether a frame is a message of WireGuard's over IPv4.
func isWireGuard(b []byte) bool {
	const udp = 14 + 20
	return len(b) > udp+12 && b[12] == 8 && b[13] == 0 && b[23] == unix.IPPROTO_UDP &&
		int(binary.BigEndian.Uint16(b[udp+2:])) == mesh.WireGuard.DefaultPort()
}

// whisper sends the secret to port 81.
func whisper(from *nettest.Machine, to netip.Addr, patience time.Duration) (err error) {
	from.Do(func() {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, 81).String(), patience); err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err = conn.Write(secret); err != nil {
			return
		}
		if err = conn.(*net.TCPConn).CloseWrite(); err != nil {
			return
		}
		if _, err = conn.Read(make([]byte, 8)); errors.Is(err, io.EOF) {
			err = nil
		}
	})
	return err
}

// shout sends the secret as datagrams, which need no answer.
func shout(from *nettest.Machine, to netip.Addr) {
	from.Do(func() {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 53).String())
		if err != nil {
			return // no way at all
		}
		defer func() { _ = c.Close() }()
		for range 3 {
			_, _ = c.Write(secret)
		}
	})
}

func wantSaid(t *testing.T, what string, from *nettest.Machine, to netip.Addr, w *wire, plain bool) {
	t.Helper()
	before := w.clear.Load()
	sealed := w.sealed.Load()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if err = whisper(from, to, time.Second); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	seen := func() bool { return plain && w.clear.Load() > before || !plain && w.sealed.Load() > sealed }
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && !seen(); {
		runtime.Gosched() // the listener is behind
	}
	if got := w.clear.Load() > before; got != plain {
		t.Errorf("%s: read on the wire: %v, want %v", what, got, plain)
	}
	if !plain && w.sealed.Load() == sealed {
		t.Errorf("%s: no message of WireGuard passed", what)
	}
}

// wantRefused wants a connection refused by this node. The kernel limits how often it says so to one sender: it is
// asked with patience.
func wantRefused(t *testing.T, what string, from *nettest.Machine, to netip.Addr) {
	t.Helper()
	err := fmt.Errorf("not tried")
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if err = whisper(from, to, 8*time.Second); err != nil && (strings.Contains(err.Error(), "no route to host") ||
			strings.Contains(err.Error(), "unreachable")) {
			return
		}
	}
	t.Errorf("%s: %v, want no route to host", what, err)
}

func TestWireGuard(t *testing.T) {
	near := nettest.NewSwitch(t, "near")
	beyond := nettest.NewSwitch(t, "beyond")
	router := nettest.New(t, "router")
	near.Join(router, 1500, "10.1.0.1/24")
	beyond.Join(router, 1500, "10.2.0.1/24")
	router.Forward()
	cl := clienttest.New()
	ma := nettest.New(t, "a")
	mb := nettest.New(t, "b")
	mc := nettest.New(t, "c")
	md := nettest.New(t, "d")
	near.Join(ma, 1500, "10.1.0.11/24")
	near.Join(mb, 1500, "10.1.0.12/24")
	far := beyond.Join(mc, 1500, "10.2.0.13/24")
	near.Join(md, 1500, "10.1.0.14/24")
	for m, gw := range map[*nettest.Machine]string{
		ma: "10.1.0.1",
		mb: "10.1.0.1",
		md: "10.1.0.1",
		mc: "10.2.0.1",
	} {
		m.Route(netip.Prefix{}, netip.MustParseAddr(gw))
	}
	wire := listen(t, near)
	a := newNode(t, cl, ma, mesh.WireGuard, "10.1.0.11", "10.42.1.0/24", "fd00:42:1::/64")
	b := newNode(t, cl, mb, mesh.WireGuard, "10.1.0.12", "10.42.2.0/24", "fd00:42:2::/64")
	c := newNode(t, cl, mc, mesh.WireGuard, "10.2.0.13", "10.42.3.0/24", "fd00:42:3::/64")
	d := newNode(t, cl, md, mesh.Auto, "10.1.0.14", "10.42.4.0/24")
	podA, onA := a.pod()
	podB, onB := b.pod()
	_, onC := c.pod()
	podD, onD := d.pod()

	sink(mb)
	wantSaid(t, "machine to machine, which shows that the listener listens", ma, netip.MustParseAddr("10.1.0.12"), wire,
		true)
	for i := range 2 { // both families
		wantReach(t, "a to b", podA, onB[i], onA[i])
		wantReach(t, "b to c", podB, onC[i], onB[i])
		wantSaid(t, "pods of neighbours", podA, onB[i], wire, false)
		wantSaid(t, "pods of machines behind a router", podA, onC[i], wire, false)
	}
	wantReach(t, "machine a to a pod of c", a.Machine, onC[0], netip.MustParseAddr("10.42.1.1"))

	seen := wire.clear.Load()
	wantRefused(t, "a to d, which has no key", podA, onD[0])
	wantRefused(t, "a to a node that does not exist", podA, netip.MustParseAddr("10.42.99.2"))
	if err := whisper(podD, onA[0], time.Second); err == nil {
		t.Error("d reaches a without a key")
	}
	shout(podA, onD[0])
	shout(podA, netip.MustParseAddr("10.42.99.2"))

	b.stop() // without its process, where the kernel has no WireGuard, b reaches no one, but not in clear either
	shout(podB, onA[0])
	shout(podB, onC[0])
	b.newKey()
	b.register("10.1.0.12", []string{"10.42.2.0/24", "fd00:42:2::/64"})
	b.startAgent()
	wantSaid(t, "b to a with another key", podB, onA[0], wire, false)
	wantSaid(t, "a to b with another key", podA, onB[1], wire, false)

	far.DelAddr("10.2.0.13/24")
	far.AddAddr("10.2.0.14/24")
	c.Route(netip.Prefix{}, netip.MustParseAddr("10.2.0.1")) // it went with the address
	c.register("10.2.0.14", []string{"10.42.3.0/24", "fd00:42:3::/64"})
	wantSaid(t, "a to c at its new address", podA, onC[0], wire, false)

	if err := cl.CoreV1().Nodes().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tunnel := " dev " + mesh.LinkName(a.cfg.ID)
	wantRoutes(t, a, "10.42.0.0/16 closed", "10.42.2.0/24 closed", "10.42.2.0/24"+tunnel, "10.42.4.0/24 closed",
		"fd00:42:2::/64 closed", "fd00:42:2::/64"+tunnel, "fd00:42::/32 closed")
	wantRefused(t, "a to c, which is gone", podA, onC[0])
	if got := wire.clear.Load(); got != seen {
		t.Errorf("%d frames could be read on the wire", got-seen)
	}

	a.stop()
	a.cfg.Mode = mesh.Auto
	a.cfg.Port = 0
	b.stop()
	b.cfg.Mode = mesh.Auto
	b.cfg.Port = 0
	for _, n := range []*node{a, b} {
		n.register(map[*node]string{a: "10.1.0.11", b: "10.1.0.12"}[n], map[*node][]string{
			a: {"10.42.1.0/24"},
			b: {"10.42.2.0/24"},
		}[n])
		n.startAgent()
	}
	wantSaid(t, "without WireGuard again", podA, onB[0], wire, true)
	wantRoutes(t, a, "10.42.2.0/24 via 10.1.0.12 dev eth0", "10.42.4.0/24 via 10.1.0.14 dev eth0")
}

// TestWireGuardPackets: pods' packets fit into the tunnel's.
func TestWireGuardPackets(t *testing.T) {
	_, a, _, c, _ := threeMachines(t, mesh.WireGuard)
	podA, onA := a.pod()
	_, onC := c.pod()
	wantReach(t, "a to c", podA, onC[0], onA[0])
	late, _ := a.pod()
	late.Must(func() error {
		l, err := net.InterfaceByName("eth0")
		if err == nil && l.MTU != 1440 {
			err = fmt.Errorf("its packets are of up to %d bytes, want 1440", l.MTU)
		}
		return err
	})
}
