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

	"keelson/lib/signal"
)

// The WireGuard library uses a buffer of 64 KiB for each packet from the link to the socket, and its queues hold
// thousands: packets that wait for encryption and, for each peer without a session, packets that wait for the
// handshake. A gate bounds both, so that pods cannot exhaust the memory of the node's process.
const (
	mostUnderWay = 512                    // maximum of packets between link and socket
	noProgress   = 50 * time.Millisecond  // after which those in transit count as dropped
	sessionLife  = 180 * time.Second      // after a handshake
	silentBurst  = 16                     // burst of packets to a peer without a session
	silentEvery  = 2 * time.Second        // interval of further packets to it
	askEvery     = 100 * time.Millisecond // minimum interval of queries for handshakes
)

type gate struct {
	out, in flow          // from the link to the socket, and back
	ask     signal.Signal // handshakes should be read

	mu    sync.Mutex
	peers map[Key]*allowance
	to    map[netip.Prefix]*allowance
	bits  []int // lengths of the prefixes
	asked time.Time
}

// flow counts packets in transit.
type flow struct {
	count    *atomic.Int64
	progress signal.Signal
}

func newFlow() flow { return flow{new(atomic.Int64), signal.New()} }

// wait waits while too many packets are in transit.
func (f flow) wait() {
	for f.count.Load() > mostUnderWay {
		stuck := time.NewTimer(noProgress)
		select {
		case <-f.progress.C():
		case <-stuck.C:
			f.count.Store(0)
		}
		stuck.Stop()
	}
}

// left records packets that have arrived. There may be more than the count, if some had been counted as dropped.
func (f flow) left(n int) {
	if f.count.Add(-int64(n)) < 0 {
		f.count.Store(0)
	}
	f.progress.Notify()
}

// allowance limits the packets to a peer.
type allowance struct {
	until time.Time // end of the session
	free  int       // remaining packets without a session
	given time.Time // when free was last increased
}

func newGate() *gate {
	return &gate{
		out:   newFlow(),
		in:    newFlow(),
		ask:   signal.New(),
		peers: map[Key]*allowance{},
		to:    map[netip.Prefix]*allowance{},
	}
}

// set updates the peers.
func (g *gate) set(peers []wgtypes.PeerConfig) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, peerConfig := range peers {
		p := g.peers[peerConfig.PublicKey]
		if peerConfig.Remove || peerConfig.ReplaceAllowedIPs {
			for r, whose := range g.to {
				if whose == p {
					delete(g.to, r)
				}
			}
		}
		if peerConfig.Remove {
			delete(g.peers, peerConfig.PublicKey)
			continue
		}
		if p == nil {
			p = &allowance{free: silentBurst}
			g.peers[peerConfig.PublicKey] = p
		}
		for i := range peerConfig.AllowedIPs {
			if r, ok := prefixOf(&peerConfig.AllowedIPs[i]); ok {
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

// allows reports whether a packet to the address may be sent now. Packets without a peer are left to the library, which
// drops them.
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
		g.ask.Notify()
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

// learn reads the times of the last handshakes from a state in the configuration protocol.
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

// gatedLink is a TUN link that the library reads through the gate. It has its own MTU, because the kernel's is set
// later.
type gatedLink struct {
	tun.Device
	gate *gate
	mtu  int
}

// MTU implements tun.Device.
func (l gatedLink) MTU() (int, error) { return l.mtu, nil }

// Read implements tun.Device. It drops packets that the gate does not allow.
func (l gatedLink) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	l.gate.out.wait()
	n, err := l.Device.Read(bufs, sizes, offset)
	now := time.Now()
	passed := int64(0)
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

// Write implements tun.Device.
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

// gatedSocket is a socket that the library uses through the gate.
type gatedSocket struct {
	conn.Bind
	gate *gate
}

// Send implements conn.Bind.
func (s gatedSocket) Send(bufs [][]byte, to conn.Endpoint) error {
	err := s.Bind.Send(bufs, to)
	s.gate.out.left(len(bufs))
	return err
}

// Open implements conn.Bind.
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
