// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzReplySource(f *testing.F) {
	f.Add([]byte{8, 0, 2, 0x80, 4, 0, 1, 0x80})
	f.Fuzz(func(_ *testing.T, b []byte) { replySource(b) })
}

func TestTupleIsReadAsWritten(t *testing.T) {
	for _, ends := range [][2]string{{"10.42.0.2:4000", "10.96.0.1:443"}, {"[fd00::2]:4000", "[fd00::1]:443"}} {
		local := netip.MustParseAddrPort(ends[0])
		remote := netip.MustParseAddrPort(ends[1])
		a := tuple(unix.IPPROTO_TCP, local, remote)
		a.Type = unix.NLA_F_NESTED | ctTupleReply
		if got, ok := replySource(a.Serialize()); !ok || got != local {
			t.Errorf("replySource = %v, %v, want %v", got, ok, local)
		}
	}
}

// The machine's own loopback is a route everywhere; a connection that never was is not known.
func TestKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if got := Route(netip.MustParseAddr("127.0.0.1")); got != "this machine itself" {
		t.Errorf("Route(127.0.0.1) = %q", got)
	}
	if got, ok := Endpoint(unix.IPPROTO_TCP, netip.MustParseAddrPort("127.0.0.9:1"),
		netip.MustParseAddrPort("127.0.0.9:2")); ok {
		t.Errorf("Endpoint of a connection that never was = %v", got)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	local := netip.MustParseAddrPort(c.LocalAddr().String())
	remote := netip.MustParseAddrPort(listener.Addr().String())
	// not known where nothing tracks connections
	if got, ok := Endpoint(unix.IPPROTO_TCP, local, remote); ok && got != remote {
		t.Errorf("Endpoint = %v, want %v", got, remote)
	}
}
