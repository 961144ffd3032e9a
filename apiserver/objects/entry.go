// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"hash/maphash"
	"reflect"
	"slices"
	"sync"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/lib/memory"
	"keelson/store"
)

// Entry is a stored object with its cached encodings. Object is shared and never modified (invariant 1). A typed object
// has an empty TypeMeta, which encoders add; the items of a list have none on the wire.
type Entry struct {
	Object   kind.Object
	Key      string
	Revision int64

	memo *Memo
	sum  uint64 // hash of the stored bytes; 0: unknown
	size int    // size of the stored bytes; 0: unknown
	enc  encodings
}

// encodings caches an entry's encoded bytes, so that a change is encoded once per encoding and not once per watcher. It
// has weak pointers only: users of the bytes and Memo keep them alive.
type encodings struct {
	mu sync.Mutex
	m  []encoding
}

type encoding struct {
	key   string
	bytes weak.Pointer[[]byte]
}

// NewEntry wraps obj, which is shared from then on. memo may be nil.
func NewEntry(key string, obj kind.Object, revision int64, memo *Memo) *Entry {
	return &Entry{
		Object:   obj,
		Key:      key,
		Revision: revision,
		memo:     memo,
	}
}

// Size is the object's stored size in bytes; 0: unknown.
func (e *Entry) Size() int { return e.size }

// Encoded returns e.Object encoded by enc. The bytes are shared and must not be modified.
func (e *Entry) Encoded(enc Encoder) ([]byte, error) {
	e.enc.mu.Lock()
	defer e.enc.mu.Unlock()
	at := -1
	for i := range e.enc.m {
		if e.enc.m[i].key != enc.Key() {
			continue
		}
		if b := e.enc.m[i].bytes.Value(); b != nil {
			return *b, nil
		}
		at = i
	}
	b, err := enc.Encode(e.Object)
	if err != nil {
		return nil, err
	}
	p := &b
	if at < 0 {
		e.enc.m = append(e.enc.m, encoding{enc.Key(), weak.Make(p)})
	} else {
		e.enc.m[at].bytes = weak.Make(p)
	}
	e.memo.add(p)
	return b, nil
}

// Memoized returns the cached result of Encoded; nil: none.
func (e *Entry) Memoized(enc Encoder) []byte {
	e.enc.mu.Lock()
	defer e.enc.mu.Unlock()
	for i := range e.enc.m {
		if e.enc.m[i].key == enc.Key() {
			if b := e.enc.m[i].bytes.Value(); b != nil {
				return *b
			}
		}
	}
	return nil
}

// Deleted is e as a deletion at revision rev shows it: the last state with that resourceVersion. It shares everything
// else with e, because the window of changes would otherwise hold full copies of all deleted objects.
func (e *Entry) Deleted(rev int64) *Entry {
	obj, ok := shallow(e.Object)
	if !ok {
		return e
	}
	obj.SetResourceVersion(FormatRevision(rev))
	return NewEntry(e.Key, obj, rev, e.memo)
}

// shallow copies obj so that fields of its metadata can be set; everything behind pointers is shared.
func shallow(obj kind.Object) (kind.Object, bool) {
	if _, ok := obj.(runtime.Unstructured); ok {
		c, ok := obj.DeepCopyObject().(kind.Object) // its metadata is a nested map
		return c, ok
	}
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, false
	}
	c := reflect.New(v.Type().Elem())
	c.Elem().Set(v.Elem())
	out, ok := reflect.TypeAssert[kind.Object](c)
	return out, ok
}

// memoAge is the minimum time that an encoding is kept; the maximum is twice that.
const memoAge = 5 * time.Minute

// Memo keeps the latest encodings alive, limited by size and age; the garbage collector frees older ones. A nil Memo
// keeps nothing.
type Memo struct {
	budget int
	fields interner

	mu             sync.Mutex
	bytes          int
	queue          []*[]byte
	sweepCount     int  // length of the queue at the last sweep
	sweepScheduled bool // the next sweep is scheduled
}

// NewMemo returns a memo with that many bytes.
func NewMemo(budget int) *Memo { return &Memo{budget: budget} }

// intern lets obj, which the caller owns, share equal parts with other objects.
func (m *Memo) intern(obj kind.Object) {
	if m != nil {
		m.fields.intern(obj)
	}
}

func (m *Memo) add(b *[]byte) {
	if m == nil || len(*b) > m.budget/8 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, b)
	m.bytes += len(*b)
	drop := 0
	for rest := m.bytes; rest > m.budget; drop++ {
		rest -= len(*m.queue[drop])
	}
	m.dropLocked(drop)
	if !m.sweepScheduled {
		m.sweepScheduled = true
		time.AfterFunc(memoAge, m.sweep)
	}
}

// dropLocked drops the n oldest and returns their size.
func (m *Memo) dropLocked(n int) (bytes int) {
	for _, b := range m.queue[:n] {
		bytes += len(*b)
	}
	clear(m.queue[:n])
	m.bytes -= bytes
	m.queue = m.queue[n:]
	m.sweepCount = max(m.sweepCount-n, 0)
	return bytes
}

// sweep drops what was queued at the last sweep, because after a burst no new encodings replace the old ones.
func (m *Memo) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	memory.Dropped(m.dropLocked(m.sweepCount))
	m.queue = slices.Clone(m.queue) // a clone without the spare capacity
	m.sweepCount = len(m.queue)
	if m.sweepScheduled = m.sweepCount > 0; m.sweepScheduled {
		time.AfterFunc(memoAge, m.sweep)
	}
}

// memoOf is memo for resources whose encodings it keeps; nil for packed ones, whose large encodings are rarely needed.
func (c Config) memoOf(memo *Memo) *Memo {
	if c.Packed {
		return nil
	}
	return memo
}

// Decoded decodes a stored value to an entry.
func (c Config) Decoded(kv store.KV, memo *Memo) (*Entry, error) {
	memo = c.memoOf(memo)
	obj, err := c.Codec.Decode(kv.Value)
	if err != nil {
		return nil, err
	}
	if c.Default != nil {
		c.Default(obj)
	}
	obj.SetResourceVersion(FormatRevision(kv.Revision))
	memo.intern(obj)
	e := NewEntry(kv.Key, obj, kv.Revision, memo)
	e.sum = hash(kv.Value)
	e.size = len(kv.Value)
	return e, nil
}

var seed = maphash.MakeSeed()

// hash never returns 0.
func hash(b []byte) uint64 { return maphash.Bytes(seed, b) | 1 }

// normalize gives obj, which the caller owns, the form that it would have after encoding and decoding.
func normalize(obj kind.Object) {
	if _, ok := obj.(runtime.Unstructured); !ok {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		entries := obj.GetManagedFields()
		for i := range entries {
			if t := entries[i].Time; t != nil && t.Nanosecond() != 0 { // else it is shared with an earlier state
				whole := t.Rfc3339Copy()
				entries[i].Time = &whole
			}
		}
	}
	created := obj.GetCreationTimestamp()
	obj.SetCreationTimestamp(created.Rfc3339Copy())
	if d := obj.GetDeletionTimestamp(); d != nil {
		whole := d.Rfc3339Copy()
		obj.SetDeletionTimestamp(&whole)
	}
}
