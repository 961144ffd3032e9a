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

// stageWhole stages a new table. All its sets, chains and rules are one transaction, with the elements of verdict maps:
// what these lead to is complete or refuses. Other elements beyond the bound follow in further transactions.
func (w *Writer) stageWhole(delta *Delta, kept map[string][]nftables.SetElement) error {
	table := w.table()
	for _, s := range delta.Sets {
		if err := w.conn.AddSet(s.kernel(table), nil); err != nil {
			return err
		}
	}
	for _, c := range delta.Chains {
		w.conn.AddChain(c.kernel(table))
	}
	for _, c := range delta.Chains {
		w.stageRules(table, c)
	}
	if err := w.stageDynamic(kept, table); err != nil {
		return err
	}
	for _, verdicts := range []bool{true, false} {
		for set, elements := range delta.Put {
			if delta.Sets[set].Verdicts != verdicts {
				continue
			}
			if err := w.stagePut(delta, table, set, maps.All(elements)); err != nil {
				return err
			}
		}
	}
	return nil
}

// stageChange stages a change. If it is larger than the bound it takes several transactions: first come new sets and
// chains, which no packet sees before the existing objects change, and last the deletion of what no packet sees any
// more.
func (w *Writer) stageChange(d *Delta) error {
	t := w.table()
	for _, stage := range []func(*Delta, *nftables.Table) error{w.stageNew, w.stageExisting, w.stageDropped} {
		if err := stage(d, t); err != nil {
			return err
		}
	}
	return nil
}

// stageNew stages new sets with their elements, and new chains that no hook calls.
func (w *Writer) stageNew(delta *Delta, table *nftables.Table) error {
	for _, s := range delta.Sets {
		if err := w.conn.AddSet(s.kernel(table), nil); err != nil {
			return err
		}
		if err := w.part(messageCost); err != nil {
			return err
		}
	}
	fresh := func(c Chain) bool { return c.Hook == "" && !delta.rewritten[c.Name] }
	for _, c := range delta.Chains { // before their rules, which may refer to each other
		if !fresh(c) {
			continue
		}
		w.conn.AddChain(c.kernel(table))
		if err := w.part(messageCost); err != nil {
			return err
		}
	}
	for _, c := range delta.Chains {
		if !fresh(c) {
			continue
		}
		w.stageRules(table, c)
		if err := w.part(len(c.Rules) * ruleCost); err != nil {
			return err
		}
	}
	for set := range delta.Sets {
		if err := w.stagePut(delta, table, set, maps.All(delta.Put[set])); err != nil {
			return err
		}
	}
	return nil
}

// stageExisting stages the changes that packets see. An element with a new value is replaced within one transaction.
func (w *Writer) stageExisting(delta *Delta, table *nftables.Table) error {
	for _, c := range delta.Chains {
		if c.Hook == "" && !delta.rewritten[c.Name] {
			continue
		}
		w.conn.AddChain(c.kernel(table))
		w.conn.FlushChain(&nftables.Chain{Name: c.Name, Table: table}) // its old rules
		w.stageRules(table, c)
		w.staged += len(c.Rules)*ruleCost + 2*messageCost
	}
	for set, keys := range delta.Drop {
		if err := w.stageGone(delta, table, set, maps.Keys(keys)); err != nil {
			return err
		}
	}
	for set, keys := range delta.replaced {
		for chunk := range slices.Chunk(keys, mostReplaced) {
			if err := w.stageReplaced(delta, table, set, chunk); err != nil {
				return err
			}
		}
	}
	for set, elements := range delta.Put {
		if _, isNew := delta.Sets[set]; isNew {
			continue
		}
		replaced := make(map[string]bool, len(delta.replaced[set]))
		for _, k := range delta.replaced[set] {
			replaced[k] = true
		}
		added := func(yield func(string, string) bool) {
			for k, v := range elements {
				if !replaced[k] && !yield(k, v) {
					return
				}
			}
		}
		if err := w.stagePut(delta, table, set, added); err != nil {
			return err
		}
	}
	return nil
}

// stageDropped stages the deletion of chains and sets.
func (w *Writer) stageDropped(delta *Delta, table *nftables.Table) error {
	for name := range delta.DropChains { // their rules may refer to each other
		w.conn.FlushChain(&nftables.Chain{Name: name, Table: table})
		if err := w.part(messageCost); err != nil {
			return err
		}
	}
	for name := range delta.DropChains {
		w.conn.DelChain(&nftables.Chain{Name: name, Table: table})
		if err := w.part(messageCost); err != nil {
			return err
		}
	}
	for name := range delta.DropSets {
		w.conn.DelSet(&nftables.Set{Name: name, Table: table})
		if err := w.part(messageCost); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) stageRules(t *nftables.Table, c Chain) {
	for _, r := range c.Rules {
		w.conn.AddRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: c.Name, Table: t}, Exprs: r.build()})
	}
}

// mostReplaced is how many elements are replaced by one pair of lists.
const mostReplaced = 200

func (w *Writer) stageReplaced(d *Delta, t *nftables.Table, set string, keys []string) error {
	if err := w.stageChunks(newChunk(t, w.spec(d, set), w.conn.SetDeleteElements), slices.Values(keys)); err != nil {
		return err
	}
	c := newChunk(t, w.spec(d, set), w.conn.SetAddElements)
	for _, k := range keys {
		if err := c.add(k, d.Put[set][k]); err != nil {
			return err
		}
	}
	if err := c.flush(); err != nil {
		return err
	}
	return w.part(2 * len(keys) * elementOverhead)
}

// stagePut stages elements; beyond the bound they are in several transactions.
func (w *Writer) stagePut(d *Delta, t *nftables.Table, set string, elements iter.Seq2[string, string]) error {
	chunk := newChunk(t, w.spec(d, set), w.conn.SetAddElements)
	for k, v := range elements {
		if err := chunk.add(k, v); err != nil {
			return err
		}
		cost := len(k) + len(v) + elementOverhead
		if w.staged+cost >= w.bound {
			if err := chunk.flush(); err != nil {
				return err
			}
		}
		if err := w.part(cost); err != nil {
			return err
		}
	}
	return chunk.flush()
}

func (w *Writer) stageGone(d *Delta, t *nftables.Table, set string, keys iter.Seq[string]) error {
	return w.stageChunks(newChunk(t, w.spec(d, set), w.conn.SetDeleteElements), keys)
}

// stageChunks stages the keys of elements.
func (w *Writer) stageChunks(c *chunk, keys iter.Seq[string]) error {
	n := 0
	for k := range keys {
		if err := c.add(k, ""); err != nil {
			return err
		}
		n += len(k) + elementOverhead
	}
	w.staged += n
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
