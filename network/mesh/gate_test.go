// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// TestSilentPeers: to a peer without a session few packets go, to one with a session all.
func TestSilentPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		peer := func(n byte, ranges ...string) wgtypes.PeerConfig {
			c := wgtypes.PeerConfig{PublicKey: Key{n}, ReplaceAllowedIPs: true}
			for _, r := range ranges {
				c.AllowedIPs = append(c.AllowedIPs, *ipNet(netip.MustParsePrefix(r)))
			}
			return c
		}
		gate.set([]wgtypes.PeerConfig{peer(1, "10.42.1.0/24", "fd42:0:0:1::/64"), peer(2, "10.42.2.0/24")})
		passed := func(to string, tries int) (n int) {
			for range tries {
				if gate.allows(netip.MustParseAddr(to), time.Now()) {
					n++
				}
			}
			return n
		}
		if got := passed("10.42.1.7", 100) + passed("fd42:0:0:1::7", 100); got != silentBurst {
			t.Errorf("%d packets pass to a silent peer, want %d", got, silentBurst)
		}
		if len(gate.ask.C()) != 1 {
			t.Error("no check for a session was requested")
		}
		if got := passed("10.42.2.7", 5) + passed("192.0.2.1", 5); got != 10 {
			t.Errorf("%d of 10 packets to others pass", got)
		}
		silent := 0
		for range 90 {
			time.Sleep(time.Second)
			silent += passed("10.42.1.7", 100)
		}
		if silent < 25 || silent > 45 {
			t.Errorf("%d packets pass in 90 s, want one in %s", silent, silentEvery)
		}
		gate.learn(
			fmt.Sprintf("public_key=%s\nlast_handshake_time_sec=%d\npublic_key=junk\nlast_handshake_time_sec=-\n",
				"01"+strings.Repeat("0", 62), time.Now().Unix()), time.Now())
		if got := passed("10.42.1.7", 1000); got != 1000 {
			t.Errorf("%d of 1000 packets pass in a session", got)
		}
		time.Sleep(sessionLife)
		if got := passed("10.42.1.7", 1000); got != silentBurst {
			t.Errorf("%d packets pass after the session, want %d", got, silentBurst)
		}
		gate.set([]wgtypes.PeerConfig{{PublicKey: Key{1}, Remove: true}, peer(2, "10.42.9.0/24")})
		if len(gate.to) != 1 || len(gate.peers) != 1 {
			t.Errorf("the gate remembers %d ranges of %d peers, want one", len(gate.to), len(gate.peers))
		}
	})
}

type nowhere struct{ conn.Bind }

func (nowhere) Send([][]byte, conn.Endpoint) error { return nil }

// TestUnderWay: the reader of the link waits while much is under way, until some has left or counts as dropped.
func TestUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		begin := time.Now()
		waits := func(want time.Duration) {
			t.Helper()
			gate.out.wait()
			if got := time.Since(begin); got != want {
				t.Errorf("it waited until %s, want %s", got, want)
			}
		}
		gate.out.count.Add(mostUnderWay)
		waits(0)
		gate.out.count.Add(1)
		go func() { // ends by itself
			time.Sleep(time.Millisecond)
			_ = gatedSocket{nowhere{}, gate}.Send(make([][]byte, 2), nil)
		}()
		waits(time.Millisecond)
		gate.out.count.Add(10)
		waits(time.Millisecond + noProgress)
		_ = gatedSocket{nowhere{}, gate}.Send(make([][]byte, 5), nil) // late
		if n := gate.out.count.Load(); n != 0 {
			t.Errorf("%d are under way, want none", n)
		}
	})
}

// FuzzDestination: no packet is too short, or too odd.
func FuzzDestination(f *testing.F) {
	f.Add([]byte{0x45})
	f.Add(append([]byte{0x60}, make([]byte, 39)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := destination(b); ok && !a.IsValid() {
			t.Errorf("%x leads to no address", b)
		}
	})
}
