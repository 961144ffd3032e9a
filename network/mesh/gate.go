// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// The library holds a buffer of 64 KiB for each packet from the link to the socket, and its queues take thousands: packets that wait for
// encryption, and for each peer without a session those that wait for its handshake. A gate bounds both, so that pods cannot have the
// node's process take all memory.
const (
	mostUnderWay = 512                    // packets between link and socket
	noProgress   = 50 * time.Millisecond  // after which those under way count as dropped
	sessionLife  = 180 * time.Second      // after a handshake
	silentBurst  = 16                     // packets to a peer without a session
	silentEvery  = 2 * time.Second        // in which it gets one more
	askEvery     = 100 * time.Millisecond // whether there is a session
)

type gate struct {
	out, in flow          // from the link to the socket, and back
	ask     chan struct{} // capacity 1: somebody wants to know of sessions

	mu    sync.Mutex
	peers map[Key]*allowance
	to    map[netip.Prefix]*allowance
	bits  []int // lengths of the prefixes
	asked time.Time
}

// flow counts packets under way.
type flow struct {
	count    *atomic.Int64
	progress chan struct{} // capacity 1
}

func newFlow() flow { return flow{new(atomic.Int64), make(chan struct{}, 1)} }

// wait waits while too many packets are under way.
func (f flow) wait() {
	for f.count.Load() > mostUnderWay {
		stuck := time.NewTimer(noProgress)
		select {
		case <-f.progress:
		case <-stuck.C:
			f.count.Store(0)
		}
		stuck.Stop()
	}
}

// left notes packets that have arrived. More than were under way are some that counted as dropped.
func (f flow) left(n int) {
	if f.count.Add(-int64(n)) < 0 {
		f.count.Store(0)
	}
	select {
	case f.progress <- struct{}{}:
	default:
	}
}

// allowance is what may be sent to a peer.
type allowance struct {
	until time.Time // there is a session
	free  int       // packets without one
	given time.Time // the last of them
}

func newGate() *gate {
	return &gate{out: newFlow(), in: newFlow(), ask: make(chan struct{}, 1), peers: map[Key]*allowance{}, to: map[netip.Prefix]*allowance{}}
}

// set follows a change of peers.
func (g *gate) set(peers []wgtypes.PeerConfig) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range peers {
		p := g.peers[c.PublicKey]
		if c.Remove || c.ReplaceAllowedIPs {
			for r, whose := range g.to {
				if whose == p {
					delete(g.to, r)
				}
			}
		}
		if c.Remove {
			delete(g.peers, c.PublicKey)
			continue
		}
		if p == nil {
			p = &allowance{free: silentBurst}
			g.peers[c.PublicKey] = p
		}
		for i := range c.AllowedIPs {
			if r, ok := prefixOf(&c.AllowedIPs[i]); ok {
				g.to[r] = p
			}
		}
	}
	g.bits = g.bits[:0]
	for r := range g.to {
		if !slices.Contains(g.bits, r.Bits()) {
			g.bits = append(g.bits, r.Bits())
		}
	}
}

// allows tells whether a packet may go to that address now. The library drops what is for nobody itself.
func (g *gate) allows(to netip.Addr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	var p *allowance
	for _, n := range g.bits {
		if r, err := to.Prefix(n); err == nil && g.to[r] != nil {
			p = g.to[r]
			break
		}
	}
	if p == nil || now.Before(p.until) {
		return true
	}
	if now.Sub(g.asked) > askEvery {
		g.asked = now
		select {
		case g.ask <- struct{}{}:
		default: // it is asked anyway
		}
	}
	if p.free == 0 && now.Sub(p.given) > silentEvery {
		p.free = 1
	}
	if p.free == 0 {
		return false
	}
	p.free--
	p.given = now
	return true
}

// learn reads when the last handshakes were, from the words of the configuration protocol.
func (g *gate) learn(state string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var p *allowance
	for s := bufio.NewScanner(strings.NewReader(state)); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), "=")
		switch key {
		case "public_key":
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != wgtypes.KeyLen {
				p = nil
				continue
			}
			p = g.peers[Key(b)]
		case "last_handshake_time_sec":
			sec, err := strconv.ParseInt(value, 10, 64)
			if err != nil || sec == 0 || p == nil {
				continue
			}
			if p.until = time.Unix(sec, 0).Add(sessionLife); now.Before(p.until) {
				p.free = silentBurst
			}
		}
	}
}

// gatedLink is a link that the library reads at its pace, and knows its MTU, which the kernel is told later.
type gatedLink struct {
	tun.Device
	gate *gate
	mtu  int
}

// MTU is the longest packet.
func (l gatedLink) MTU() (int, error) { return l.mtu, nil }

// Read is a tun.Device's. Packets that must wait are left out.
func (l gatedLink) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	l.gate.out.wait()
	n, err := l.Device.Read(bufs, sizes, offset)
	now, passed := time.Now(), int64(0)
	for i := range n {
		if to, ok := destination(bufs[i][offset : offset+sizes[i]]); ok && !l.gate.allows(to, now) {
			sizes[i] = 0
			continue
		}
		passed++
	}
	l.gate.out.count.Add(passed)
	return n, err
}

// Write is a tun.Device's.
func (l gatedLink) Write(bufs [][]byte, offset int) (int, error) {
	n, err := l.Device.Write(bufs, offset)
	l.gate.in.left(len(bufs))
	return n, err
}

func destination(packet []byte) (netip.Addr, bool) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[16:20])), true
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[24:40])), true
	}
	return netip.Addr{}, false
}

// gatedSocket is a socket that the library reads at its pace.
type gatedSocket struct {
	conn.Bind
	gate *gate
}

// Send is a conn.Bind's.
func (s gatedSocket) Send(bufs [][]byte, to conn.Endpoint) error {
	err := s.Bind.Send(bufs, to)
	s.gate.out.left(len(bufs))
	return err
}

// Open is a conn.Bind's.
func (s gatedSocket) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := s.Bind.Open(port)
	for i, read := range fns {
		fns[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			s.gate.in.wait()
			n, err := read(packets, sizes, from)
			s.gate.in.count.Add(int64(n))
			return n, err
		}
	}
	return fns, actual, err
}
