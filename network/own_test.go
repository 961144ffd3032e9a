// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

// listenAs answers every connection to addr with name.
func listenAs(t *testing.T, addr, name string) {
	t.Helper()
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name))
			_ = c.Close()
		}
	}()
}

// TestPodsCannotTakeTheNodesPorts: neither a port that is reserved, before or after, nor one that a process listens on.
func TestPodsCannotTakeTheNodesPorts(t *testing.T) {
	needRoot(t)
	bringUp(t)
	cfg := newConfig(t)
	network, stop := start(t, cfg)
	ns := newNetns(t)
	thiefs := newNetns(t)
	if err := network.Reserve(6443, "the API server"); err != nil {
		t.Fatal(err)
	}
	listenAs(t, "127.0.0.1:2222", "sshd")
	refused := func(n *Network, part string, p PortMapping) {
		t.Helper()
		_, err := n.Attach(t.Context(), "thief", thiefs, []PortMapping{p})
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("attach with host port %v: got %v, want %q", p, err, part)
		}
		if len(n.Attached()) != 0 {
			t.Errorf("attached after a refusal: %v", n.Attached())
		}
	}
	mine := "host port 6443/TCP belongs to the API server of this node"
	refused(network, mine, PortMapping{HostPort: 6443, ContainerPort: 80})
	refused(network, mine, PortMapping{HostPort: 6443, ContainerPort: 80, HostIP: netip.MustParseAddr("127.0.0.1")})
	refused(network, "host port 6443/UDP belongs to", PortMapping{Protocol: "UDP", HostPort: 6443, ContainerPort: 80})
	refused(network, "host port 2222/TCP is in use: a process of the node listens on it", PortMapping{
		HostPort:      2222,
		ContainerPort: 80,
	})
	refused(network, "is in use", PortMapping{
		HostPort:      2222,
		ContainerPort: 80,
		HostIP:        netip.MustParseAddr("127.0.0.1"),
	})
	attach(t, network, "pod", ns, PortMapping{HostPort: 10250, ContainerPort: 80})
	serveIn(t, ns, ":80")
	wantAnswer(t, "a port of the pod", "", "127.0.0.1:10250", network.families[0].gateway.String())
	listenAs(t, "127.0.0.1:10250", "kubelet")
	if err := network.Reserve(10250, "the kubelet"); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "the same port once it is the node's", "", "127.0.0.1:10250", "kubelet")
	stop()
	network, _ = start(t, cfg)
	if err := network.Reserve(10250, "the kubelet"); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, "after a restart", "", "127.0.0.1:10250", "kubelet")
	attach(t, network, "pod", ns, PortMapping{HostPort: 10250, ContainerPort: 80}) // it runs on, without the port
}
