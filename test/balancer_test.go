// SPDX-License-Identifier: Apache-2.0

package test

import (
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// balancer is a load balancer of plain TCP: it passes each connection to the first server that accepts one.
type balancer struct {
	listener net.Listener
	servers  []string
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newBalancer(t *testing.T, at string, servers ...string) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener, servers: servers}
	b.wg.Go(b.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		b.mu.Lock()
		for _, c := range b.conns {
			_ = c.Close()
		}
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b
}

func (b *balancer) accept() {
	for {
		near, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.keep(near)
		b.wg.Go(func() { b.pass(near) })
	}
}

func (b *balancer) keep(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, c)
}

func (b *balancer) pass(near net.Conn) {
	defer func() { _ = near.Close() }()
	for _, server := range b.servers {
		far, err := net.DialTimeout("tcp", server, time.Second)
		if err != nil {
			continue
		}
		b.keep(far)
		defer func() { _ = far.Close() }()
		b.wg.Go(func() {
			_, _ = io.Copy(far, near)
			_ = far.Close()
		})
		_, _ = io.Copy(near, far)
		return
	}
}

// TestBalancer: a node that reaches two servers by a load balancer alone, and that no server reaches, joins, goes on
// when the server behind its connections is killed, and has logs and commands by its tunnel.
func TestBalancer(t *testing.T) {
	f := newFailover(t)
	const host = failoverNet + ".1"
	for _, name := range []string{"s1", "s2"} {
		f.server(t, name, "--tls-san", host)
	}
	newBalancer(t, host+":7443", address("s1")+":6443", address("s2")+":6443")
	f.agents(t)
	cut := "add table inet cut; add chain inet cut out { type filter hook output priority 0; }; " +
		"add chain inet cut in { type filter hook input priority 0; }; " +
		"add rule inet cut out oifname eth0 tcp dport 6443 drop; add rule inet cut in iifname eth0 tcp dport 10250 drop"
	if out, err := f.inside("n1", "nft", cut).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	out, err := exec.Command(f.bin, "token", "create", "--print-join-command", "--data-dir", f.data("s1"), "--server",
		"https://"+host+":7443").Output()
	if err != nil || !strings.Contains(string(out), "https://"+host+":7443") {
		t.Fatalf("token create: %v, %s; want the address of the balancer", err, out)
	}
	f.join(t, "n1", string(out))
	f.works(t, "s1", "first")
	f.reaches(t, "s1")
	f.stops["s1"]()
	t.Logf("behind the balancer: Ready pods after %s", f.works(t, "s2", "second").Round(10*time.Millisecond))
	f.reaches(t, "s2")
	f.undisturbed(t, "s2")
}
