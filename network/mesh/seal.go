// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"keelson/network/nft"
)

// If a plan is encrypted, unencrypted packets with a pod's source address are dropped. The table in nft's syntax:
//
//	table inet keelson-ID-way {
//	    set pods4        { type ipv4_addr; flags interval }      of all nodes
//	    chain forward    { type filter hook forward priority filter - 20
//	                       ip saddr @pods4 jump outside }
//	    chain input      { type filter hook input priority filter - 20
//	                       ip saddr @pods4 jump clear }
//	    chain outside    { ip daddr OWN goto clear; oifname TUNNEL goto clear }
//	    chain clear      { iifname { TUNNEL, lo } return; iifgroup & 0xffff0000 != 0 return; drop }
//	}
//
// and the same for IPv6. Links of groups above 0xffff are those of this machine's pods, which cannot use other source
// addresses. Packets to pods of another cluster on this machine are checked by that cluster. The hooks are after DNAT,
// so that Services do not bypass them.

// seal maintains the table.
type seal struct {
	id, link string
	ns       *os.File

	mu      sync.Mutex
	w       *nft.Writer
	broken  atomic.Bool // another program has changed the table
	removed bool        // plans are not encrypted, so there is no table
}

// repairPause is the minimum interval of repairs: the other program may repeat its change.
const repairPause = time.Second

// openSeal returns the seal of the calling thread's network namespace.
func openSeal(id, link string) (*seal, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &seal{id: id, link: link, ns: ns}, nil
}

func (s *seal) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w != nil {
		_ = s.w.Close() // the table stays
	}
	_ = s.ns.Close()
}

// writer returns the table's writer.
func (s *seal) writer() (*nft.Writer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.w == nil {
		s.w, err = nft.Open(nft.Config{
			Name:  "keelson-" + s.id + "-way",
			NetNS: int(s.ns.Fd()),
			Log:   slog.New(slog.DiscardHandler),
		})
	}
	return s.w, err
}

// apply writes the table: packets from the ranges pods to own or to the machine are accepted from the tunnel only.
func (s *seal) apply(own, pods []netip.Prefix) error {
	w, err := s.writer()
	if err != nil {
		return err
	}
	s.removed = false
	write := func() error { return w.Write(sealed("keelson-"+s.id+"-way", s.link, own, pods)) }
	if s.broken.Swap(false) {
		write = func() error {
			return errors.Join(w.Delete(), w.Write(sealed("keelson-"+s.id+"-way", s.link, own, pods)))
		}
	}
	if err := write(); err != nil {
		return fmt.Errorf("write rules against unencrypted packets: %w", err)
	}
	return nil
}

// remove deletes the table, also that of an earlier run.
func (s *seal) remove() error {
	if s.removed {
		return nil
	}
	w, err := s.writer()
	if err != nil {
		return err
	}
	if err := w.Delete(); err != nil {
		return err
	}
	s.removed = true
	return nil
}

// WatchSeal calls changed when another program has changed the table, until ctx is done. The next Apply repairs it.
func (k *Kernel) WatchSeal(ctx context.Context, changed func()) error {
	w, err := k.seal.writer()
	if err != nil {
		return err
	}
	return w.Watch(ctx, func() {
		if k.seal.broken.CompareAndSwap(false, true) {
			time.AfterFunc(repairPause, changed)
		}
	})
}

// sealed returns the table.
func sealed(name, link string, own, pods []netip.Prefix) *nft.Table {
	table := nft.NewTable(name)
	forward := nft.Chain{
		Name:     "forward",
		Type:     nft.Filter,
		Hook:     nft.Forward,
		Priority: -20,
	}
	input := nft.Chain{
		Name:     "input",
		Type:     nft.Filter,
		Hook:     nft.Input,
		Priority: -20,
	}
	outside := nft.Chain{Name: "outside"}
	for _, f := range []struct {
		set      string
		typ      nft.Type
		src, dst nft.Field
		four     bool
	}{{"pods4", nft.IPv4, nft.IPSaddr, nft.IPDaddr, true}, {"pods6", nft.IPv6, nft.IP6Saddr, nft.IP6Daddr, false}} {
		table.AddSet(nft.Set{Name: f.set, Key: []nft.Type{f.typ}, Interval: true})
		for _, p := range widest(pods, f.four) {
			table.Put(f.set, nft.RangeKey(nft.Net(p)), "")
		}
		forward.Rules = append(forward.Rules, nft.Rule{nft.In(f.set, f.src), nft.Jump("outside")})
		input.Rules = append(input.Rules, nft.Rule{nft.In(f.set, f.src), nft.Jump("clear")})
		for _, p := range own {
			if p.Addr().Is4() == f.four {
				outside.Rules = append(outside.Rules, nft.Rule{nft.Within(f.dst, p), nft.Goto("clear")})
			}
		}
	}
	outside.Rules = append(outside.Rules, nft.Rule{nft.Is(nft.OIFName, nft.InterfaceName(link)), nft.Goto("clear")})
	for _, c := range []nft.Chain{forward, input, outside} {
		table.AddChain(c)
	}
	table.AddChain(clearChain(link))
	return table
}

// clearChain drops what comes neither from the tunnel nor from this machine.
func clearChain(link string) nft.Chain {
	return nft.Chain{
		Name: "clear",
		Rules: []nft.Rule{
			{nft.Is(nft.IIFName, nft.InterfaceName(link)), nft.Return()},
			{nft.Is(nft.IIFName, nft.InterfaceName("lo")), nft.Return()},
			{nft.OfPods(), nft.Return()},
			{nft.Drop()},
		},
	}
}

// widest returns the ranges of a family that no other one contains.
func widest(ranges []netip.Prefix, four bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ranges {
		if p.Addr().Is4() == four {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	kept := out[:0]
	for _, p := range out {
		if !overlaps(p, kept) {
			kept = append(kept, p)
		}
	}
	return kept
}
