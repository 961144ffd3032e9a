// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// sources are the allowed client addresses: those of pods and nodes, and this machine's own.
type sources struct {
	extra []netip.Prefix
	pod   func(netip.Addr) bool // may be nil
	now   atomic.Pointer[sourceSet]

	mu    sync.Mutex
	nodes map[string]nodeAddrs
	seen  time.Time // when the machine's own addresses were looked at
}

type nodeAddrs struct {
	ranges []netip.Prefix
	addrs  []netip.Addr
}

type sourceSet struct {
	ranges []netip.Prefix
	addrs  map[netip.Addr]struct{}
	own    map[netip.Addr]struct{}
}

func newSources(extra []netip.Prefix, pod func(netip.Addr) bool) *sources {
	s := &sources{extra: extra, pod: pod, nodes: map[string]nodeAddrs{}}
	s.now.Store(&sourceSet{ranges: extra})
	return s
}

// allowed reports whether a client address is allowed.
func (s *sources) allowed(a netip.Addr) bool {
	a = a.WithZone("")
	return a.IsLoopback() || s.now.Load().has(a) || s.pod != nil && s.pod(a) || s.local(a)
}

func (c *sourceSet) has(a netip.Addr) bool {
	for _, r := range c.ranges {
		if r.Contains(a) {
			return true
		}
	}
	if _, ok := c.own[a]; ok {
		return true
	}
	_, ok := c.addrs[a]
	return ok
}

// lookEvery is how often a stranger makes us look at the machine's addresses.
const lookEvery = time.Second

// local looks whether a stranger is this machine itself by an address that it got lately.
func (s *sources) local(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.seen) < lookEvery {
		return false
	}
	s.seen = time.Now()
	list, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	c := *s.now.Load()
	c.own = map[netip.Addr]struct{}{}
	for _, l := range list {
		if p, err := netip.ParsePrefix(l.String()); err == nil {
			c.own[p.Addr().Unmap().WithZone("")] = struct{}{}
		}
	}
	s.now.Store(&c)
	return c.has(addr)
}

func (s *sources) setNode(node *corev1.Node) {
	var got nodeAddrs
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil {
			got.ranges = append(got.ranges, p.Masked())
		}
	}
	for _, addr := range node.Status.Addresses {
		if a, err := netip.ParseAddr(addr.Address); err == nil && addr.Type == corev1.NodeInternalIP {
			got.addrs = append(got.addrs, a.Unmap())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[node.Name] = got
	s.rebuildLocked()
}

func (s *sources) dropNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
	s.rebuildLocked()
}

func (s *sources) rebuildLocked() {
	c := &sourceSet{
		ranges: append([]netip.Prefix(nil), s.extra...),
		addrs:  map[netip.Addr]struct{}{},
		own:    s.now.Load().own,
	}
	for _, n := range s.nodes {
		c.ranges = append(c.ranges, n.ranges...)
		for _, a := range n.addrs {
			c.addrs[a] = struct{}{}
		}
	}
	s.now.Store(c)
}
