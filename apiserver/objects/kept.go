// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"sync"
	"weak"

	"keelson/lib/deflate"
	"keelson/store"
)

// Kept is an entry as a cache keeps it; its zero value is none. The entries of a packed resource are kept as compressed
// bytes, which are decoded for a reader and forgotten when the last reader is done.
type Kept struct {
	entry  *Entry // nil where packed is set
	packed *packed
}

// packed is the stored value of an entry. It never changes; entry shares one decoded form among its readers.
type packed struct {
	records  *Records
	key      string
	revision int64
	labels   map[string]string
	value    deflate.Packed

	mu    sync.Mutex
	entry weak.Pointer[Entry]
}

// Keep returns e, nil for none, for keeping. value is its stored value.
func (r *Records) Keep(e *Entry, value []byte) Kept {
	if e == nil || !r.Packed || len(value) == 0 {
		return Kept{entry: e}
	}
	return Kept{packed: &packed{
		records:  r,
		key:      e.Key,
		revision: e.Revision,
		labels:   e.Object.GetLabels(),
		value:    deflate.Pack(value),
		entry:    weak.Make(e),
	}}
}

// None reports whether there is no entry.
func (k Kept) None() bool { return k.entry == nil && k.packed == nil }

// Key is the entry's key, "" for none.
func (k Kept) Key() string {
	switch {
	case k.packed != nil:
		return k.packed.key
	case k.entry != nil:
		return k.entry.Key
	}
	return ""
}

// Labels are the object's labels, which are shared; nil for none.
func (k Kept) Labels() map[string]string {
	switch {
	case k.packed != nil:
		return k.packed.labels
	case k.entry != nil:
		return k.entry.Object.GetLabels()
	}
	return nil
}

// Size is the object's stored size in bytes; 0: unknown, or none.
func (k Kept) Size() int {
	switch {
	case k.packed != nil:
		return k.packed.value.Size()
	case k.entry != nil:
		return k.entry.size
	}
	return 0
}

// Entry returns the entry, nil for none.
func (k Kept) Entry() *Entry {
	if k.packed != nil {
		return k.packed.open()
	}
	return k.entry
}

func (p *packed) open() *Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entry.Value(); e != nil {
		return e
	}
	e, err := p.records.Decoded(store.KV{Key: p.key, Value: p.value.Unpack(), Revision: p.revision}, p.records.memo)
	if err != nil {
		panic(fmt.Sprintf("watch cache: %s was decoded before and cannot be now: %v", p.key, err))
	}
	p.entry = weak.Make(e)
	return e
}
