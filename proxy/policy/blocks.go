// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// Span is a range of addresses of one family, both ends included.
type Span struct{ From, To netip.Addr }

func (s Span) String() string {
	if s.From == s.To {
		return s.From.String()
	}
	return s.From.String() + "-" + s.To.String()
}

func (s Span) contains(a netip.Addr) bool {
	return a.BitLen() == s.From.BitLen() && a.Compare(s.From) >= 0 && a.Compare(s.To) <= 0
}

func spanOf(p netip.Prefix) Span {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	to, _ := netip.AddrFromSlice(last) // it has a valid length
	return Span{p.Addr(), to}
}

// spans returns the addresses of a block: its range without the exceptions. false: the block or an exception does not
// parse.
func spans(b *networkingv1.IPBlock) ([]Span, bool) {
	whole, err := parsePrefix(b.CIDR)
	if err != nil {
		return nil, false
	}
	cuts := make([]Span, 0, len(b.Except))
	for _, e := range b.Except {
		p, err := parsePrefix(e)
		if err != nil {
			return nil, false
		}
		cuts = append(cuts, spanOf(p))
	}
	return without(spanOf(whole), union(cuts)), true
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err == nil && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, err
}

// without returns the parts of a span that are outside the cuts, which union has sorted and made disjoint.
func without(span Span, cuts []Span) []Span {
	var out []Span
	for _, cut := range cuts {
		if span.From.BitLen() != cut.From.BitLen() || cut.To.Less(span.From) {
			continue
		}
		if span.To.Less(cut.From) {
			break
		}
		if span.From.Less(cut.From) {
			out = append(out, Span{span.From, cut.From.Prev()})
		}
		if !cut.To.Less(span.To) {
			return out
		}
		span.From = cut.To.Next()
	}
	return append(out, span)
}

// inSpans reports whether a is in one of the spans, which union has sorted and made disjoint.
func inSpans(spans []Span, a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(spans, a, func(s Span, a netip.Addr) int {
		switch c := cmp.Compare(s.From.BitLen(), a.BitLen()); {
		case c != 0:
			return c
		case s.To.Less(a):
			return -1
		}
		return 0
	})
	return i < len(spans) && spans[i].contains(a)
}

// union sorts spans and joins those that overlap or touch: the kernel's intervals must be disjoint.
func union(in []Span) []Span {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b Span) int {
		if c := a.From.BitLen() - b.From.BitLen(); c != 0 {
			return c
		}
		return a.From.Compare(b.From)
	})
	var out []Span
	for _, s := range in {
		if n := len(out); n > 0 && meets(out[n-1], s) {
			if out[n-1].To.Less(s.To) {
				out[n-1].To = s.To
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// meets reports whether b, which does not start before a, starts in it or right after it.
func meets(a, b Span) bool {
	if a.From.BitLen() != b.From.BitLen() {
		return false
	}
	next := a.To.Next()
	return !next.IsValid() || b.From.Compare(next) <= 0
}
