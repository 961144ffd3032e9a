// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// A list of elements is one netlink attribute, whose length is a 16-bit number.
const (
	chunkBytes      = 48 << 10
	elementOverhead = 64 // approximate maximum size of an element's attributes
)

// chunk collects elements of a set and sends them in lists of bounded size.
type chunk struct {
	set   *nftables.Set
	spec  Set
	send  func(*nftables.Set, []nftables.SetElement) error
	els   []nftables.SetElement
	bytes int
}

func newChunk(t *nftables.Table, spec Set, send func(*nftables.Set, []nftables.SetElement) error) *chunk {
	set := spec.kernel(t)
	set.ID = 0 // refer to it by name: an earlier transaction may have made it
	return &chunk{set: set, spec: spec, send: send}
}

func (c *chunk) add(key, value string) error {
	els := c.spec.elements(key, value)
	size := len(key) + len(value) + elementOverhead*len(els)
	if c.bytes+size > chunkBytes {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.els = append(c.els, els...)
	c.bytes = c.bytes + size
	return nil
}

func (c *chunk) flush() error {
	if len(c.els) == 0 {
		return nil
	}
	err := c.send(c.set, c.els)
	c.els = c.els[:0]
	c.bytes = 0
	return err
}

// stageElements adds the element changes of delta to the connection's transaction, deletions first.
func (w *Writer) stageElements(delta *Delta, table *nftables.Table) error {
	for set, keys := range delta.Drop {
		if err := w.stageGone(delta, table, set, maps.Keys(keys)); err != nil {
			return err
		}
	}
	for set, keys := range delta.replaced {
		if err := w.stageGone(delta, table, set, slices.Values(keys)); err != nil {
			return err
		}
	}
	staged := 0
	for set, elements := range delta.Put {
		chunk := newChunk(table, w.spec(delta, set), w.conn.SetAddElements)
		for k, v := range elements {
			if err := chunk.add(k, v); err != nil {
				return err
			}
			if staged += len(k) + len(v) + elementOverhead; staged < w.bound {
				continue
			}
			staged = 0
			if err := chunk.flush(); err != nil {
				return err
			}
			if err := w.conn.Flush(); err != nil {
				return err
			}
		}
		if err := chunk.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) stageGone(d *Delta, t *nftables.Table, set string, keys iter.Seq[string]) error {
	c := newChunk(t, w.spec(d, set), w.conn.SetDeleteElements)
	for k := range keys {
		if err := c.add(k, ""); err != nil {
			return err
		}
	}
	return c.flush()
}

// spec returns the definition of a set, which d may add or delete.
func (w *Writer) spec(d *Delta, set string) Set {
	if s, ok := d.Sets[set]; ok {
		return s
	}
	return w.want.Sets[set]
}

const sizeOfDynamic = 65536

func (s Set) kernel(t *nftables.Table) *nftables.Set {
	out := &nftables.Set{
		Table:         t,
		Name:          s.Name,
		Interval:      s.Interval,
		KeyType:       kernelType(s.Key),
		Concatenation: len(s.Key) > 1,
		Size:          s.Size,
	}
	switch {
	case s.Verdicts:
		out.IsMap = true
		out.DataType = nftables.TypeVerdict
	case len(s.Data) > 0:
		out.IsMap = true
		out.DataType = kernelType(s.Data)
	}
	if s.dynamic() {
		out.Dynamic = true
		out.HasTimeout = true
		out.Timeout = s.Timeout
		if out.Size == 0 {
			out.Size = sizeOfDynamic
		}
	}
	return out
}

func kernelType(ts []Type) nftables.SetDatatype {
	if len(ts) == 1 {
		return ts[0].info().kind
	}
	kinds := make([]nftables.SetDatatype, len(ts))
	for i, t := range ts {
		kinds[i] = t.info().kind
	}
	return nftables.MustConcatSetType(kinds...)
}

// elements returns the kernel's elements for one element: an interval is its first value and, as interval end, the
// first value after it.
func (s Set) elements(key, value string) []nftables.SetElement {
	w := s.width()
	// In a key of one part nothing is padded.
	cut := func(k string) []byte {
		if len(s.Key) == 1 {
			return []byte(k)[:s.Key[0].info().bytes]
		}
		return []byte(k)
	}
	el := nftables.SetElement{Key: cut(key[:w])}
	switch {
	case value == "":
	case s.Verdicts:
		el.VerdictData = verdictOf(value)
	case len(s.Data) == 1:
		el.Val = []byte(value)[:s.Data[0].info().bytes]
	default:
		el.Val = []byte(value)
	}
	if !s.Interval {
		return []nftables.SetElement{el}
	}
	end := key[w:]
	if len(s.Key) > 1 {
		el.KeyEnd = []byte(end)
		return []nftables.SetElement{el}
	}
	after, more := next(cut(end))
	if !more {
		return []nftables.SetElement{el}
	}
	return []nftables.SetElement{el, {Key: after, IntervalEnd: true}}
}

// next returns b + 1 as a big-endian number of the same length; false: overflow.
func next(b []byte) ([]byte, bool) {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b, true
		}
	}
	return nil, false
}

func verdictOf(value string) *expr.Verdict {
	switch word, chain, _ := strings.Cut(value, " "); word {
	case "goto":
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}
	case "jump":
		return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}
	case ToDrop:
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case ToReturn:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	}
	return &expr.Verdict{Kind: expr.VerdictAccept}
}

func (c Chain) kernel(t *nftables.Table) *nftables.Chain {
	out := &nftables.Chain{Name: c.Name, Table: t}
	if c.Hook != "" {
		out.Type = nftables.ChainType(c.Type)
		out.Priority = new(nftables.ChainPriority(c.Priority))
		out.Hooknum = hooks[c.Hook]
	}
	return out
}

var hooks = map[Hook]*nftables.ChainHook{
	Prerouting:  nftables.ChainHookPrerouting,
	Input:       nftables.ChainHookInput,
	Forward:     nftables.ChainHookForward,
	Output:      nftables.ChainHookOutput,
	Postrouting: nftables.ChainHookPostrouting,
}
