// SPDX-License-Identifier: Apache-2.0

package reach

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/networking/reach"
)

func TestCandidates(t *testing.T) {
	search := []string{"default.svc.cluster.local", "svc.cluster.local"}
	for _, c := range []struct {
		name  string
		ndots int
		want  []string
	}{
		{"web", 5, []string{"web.default.svc.cluster.local", "web.svc.cluster.local", "web"}},
		{"web.", 5, []string{"web"}},
		{"a.b.c", 2, []string{"a.b.c", "a.b.c.default.svc.cluster.local", "a.b.c.svc.cluster.local"}},
	} {
		var got []string
		for _, x := range candidates(c.name, search, c.ndots) {
			got = append(got, x.name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("candidates(%q, ndots %d) = %v, want %v", c.name, c.ndots, got, c.want)
		}
	}
}

func TestNDots(t *testing.T) {
	for option, want := range map[string]int{
		"":         1,
		"ndots:5":  5,
		"ndots:99": 15,
		"ndots:x":  1,
		"ndots:-1": 1,
	} {
		if got := ndots(&runtimeapi.DNSConfig{Options: []string{option}}); got != want {
			t.Errorf("ndots(%q) = %d, want %d", option, got, want)
		}
	}
}

func TestHosts(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		HostAliases: []corev1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"db", "db.example"}}},
	}}
	if got := inHosts(pod, "DB.example", "cluster.local"); len(got) != 1 || got[0].String() != "192.0.2.7" {
		t.Errorf("inHosts = %v", got)
	}
	if got := inHosts(pod, "web", "cluster.local"); len(got) != 0 {
		t.Errorf("inHosts(web) = %v", got)
	}
}

func TestNetworkOf(t *testing.T) {
	for info, want := range map[string]string{
		`{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/x"}]}}}`: "/run/netns/x",
		`{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}`:                                      "/proc/7/ns/net",
		`{}`: "",
		`[`:  "",
	} {
		got, err := networkOf(info)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("networkOf(%s) = %q, %v, want %q", info, got, err, want)
		}
	}
}

func FuzzNetworkOf(f *testing.F) {
	f.Add(`{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/x"}]}}}`)
	f.Fuzz(func(_ *testing.T, info string) { _, _ = networkOf(info) })
}

func TestConnect(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := addrPort(l.Addr())
	if c := connect(context.Background(), corev1.ProtocolTCP, at, 20*time.Second); c.Outcome != reach.Connected ||
		c.Local.Port() == 0 || c.Remote != at {
		t.Errorf("connect to a listener: %+v", c)
	}
	_ = l.Close()
	if c := connect(context.Background(), corev1.ProtocolTCP, at, 20*time.Second); c.Outcome != reach.Refused ||
		c.Local.Port() == 0 {
		t.Errorf("connect to a port without a listener: %+v", c)
	}
	if c := connect(context.Background(), corev1.ProtocolUDP, at, 20*time.Second); c.Outcome != reach.Refused {
		t.Errorf("a datagram to a port without a listener: %+v", c)
	}
	u, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	if c := connect(context.Background(), corev1.ProtocolUDP, addrPort(u.LocalAddr()),
		silence); c.Outcome != reach.Sent {
		t.Errorf("a datagram without an answer: %+v", c)
	}
	if c := connect(context.Background(), corev1.ProtocolTCP, netip.MustParseAddrPort("192.0.2.1:80"),
		time.Nanosecond); c.Outcome != reach.TimedOut {
		t.Errorf("no time: %+v", c)
	}
}

// Probes hold threads: a fifth waits, and fails when it has waited too long.
func TestTurns(t *testing.T) {
	p := New(Config{})
	for range atOnce {
		if _, err := p.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := p.Probe(ctx, &corev1.Pod{}, reach.Asked{}); err == nil {
		t.Error("one more probe than may run at once")
	}
}

// twoClusters is a machine on which another cluster serves one address.
type twoClusters struct {
	Paths
	both netip.Addr
}

func (c twoClusters) Shared(at netip.Addr) bool { return at == c.both }

func (twoClusters) Route(netip.Addr) string { return "" }

// TestShared: a query and a connection say that another cluster serves their address too.
func TestShared(t *testing.T) {
	p := New(Config{Paths: twoClusters{both: netip.MustParseAddr("10.96.0.10")}})
	for server, want := range map[string]bool{"10.96.0.10": true, "10.96.0.11": false, "no address": false} {
		try := reach.Try{Server: server}
		p.shared(&try)
		connection := &reach.Connection{}
		if at, err := netip.ParseAddr(server); err == nil {
			connection.Remote = netip.AddrPortFrom(at, 53)
		}
		p.follow(corev1.ProtocolUDP, connection)
		if try.Shared != want || connection.Shared != want {
			t.Errorf("%s: query %v, connection %v; want %v", server, try.Shared, connection.Shared, want)
		}
	}
}
