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

// Where a plan is encrypted, nothing comes in clear in a pod's name. The table, as nft would print it:
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
// and the same of IPv6. Links of the groups beyond 0xffff are of this machine's pods, which send in their own names only. What goes to the pods of
// another cluster on this machine is that cluster's to judge. The hooks are behind the translation of addresses, so that Services are no way around.

// seal keeps the table.
type seal struct {
	id, link string
	ns       *os.File

	mu      sync.Mutex
	w       *nft.Writer
	broken  atomic.Bool // somebody else has changed the table
	removed bool        // there is none, as plans are not encrypted
}

// repairPause is between two repairs: whoever changes the table may insist.
const repairPause = time.Second

// openSeal belongs to the calling thread's network namespace.
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

// writer is the table's.
func (s *seal) writer() (*nft.Writer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.w == nil {
		s.w, err = nft.Open(nft.Config{Name: "keelson-" + s.id + "-way", NetNS: int(s.ns.Fd()), Log: slog.New(slog.DiscardHandler)})
	}
	return s.w, err
}

// apply lets in from own's neighbours what comes by the tunnel alone, of all that pods in the ranges may have sent.
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
		return fmt.Errorf("keep out what comes in clear: %w", err)
	}
	return nil
}

// remove takes the table away, of an earlier run too.
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

// WatchSeal calls changed when somebody else has changed the table of what is let in, until ctx is done. The next Apply mends it.
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

func sealed(name, link string, own, pods []netip.Prefix) *nft.Table {
	t := nft.NewTable(name)
	forward := nft.Chain{Name: "forward", Type: nft.Filter, Hook: nft.Forward, Priority: -20}
	input := nft.Chain{Name: "input", Type: nft.Filter, Hook: nft.Input, Priority: -20}
	outside := nft.Chain{Name: "outside"}
	for _, f := range []struct {
		set      string
		typ      nft.Type
		src, dst nft.Field
		four     bool
	}{{"pods4", nft.IPv4, nft.IPSaddr, nft.IPDaddr, true}, {"pods6", nft.IPv6, nft.IP6Saddr, nft.IP6Daddr, false}} {
		t.AddSet(nft.Set{Name: f.set, Key: []nft.Type{f.typ}, Interval: true})
		for _, p := range widest(pods, f.four) {
			t.Put(f.set, nft.RangeKey(nft.Net(p)), "")
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
		t.AddChain(c)
	}
	t.AddChain(nft.Chain{Name: "clear", Rules: []nft.Rule{
		{nft.Is(nft.IIFName, nft.InterfaceName(link)), nft.Return()},
		{nft.Is(nft.IIFName, nft.InterfaceName("lo")), nft.Return()},
		{nft.OfPods(), nft.Return()},
		{nft.Drop()},
	}})
	return t
}

// widest are the ranges of a family without those within another.
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
