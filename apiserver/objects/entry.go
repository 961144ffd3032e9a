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

// Entry is one stored object with its memoized encodings. Object is shared and never modified (invariant 1); a typed object
// has an empty TypeMeta, which whoever encodes it adds (a list's items carry none on the wire).
type Entry struct {
	Object   kind.Object
	Key      string
	Revision int64

	memo *Memo
	sum  uint64 // hash of the stored bytes, 0 when unknown
	size int    // of the stored bytes, 0 when unknown
	enc  encodings
}

// encodings memoizes an entry's wire bytes, so that a change is encoded once per encoding and not once per watcher.
// It does not keep them alive: that is for their users, and for Memo.
type encodings struct {
	mu sync.Mutex
	m  []encoding
}

type encoding struct {
	key   string
	bytes weak.Pointer[[]byte]
}

// NewEntry wraps obj, which becomes shared. memo may be nil.
func NewEntry(key string, obj kind.Object, revision int64, memo *Memo) *Entry {
	return &Entry{Object: obj, Key: key, Revision: revision, memo: memo}
}

// Size is how many bytes the object takes in the store; 0: unknown.
func (e *Entry) Size() int { return e.size }

// Encoded returns e.Object in the encoding of enc. The bytes are shared: never modify them.
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
	e.memo.keep(p)
	return b, nil
}

// Memoized is what Encoded would return if it had no work to do; nil: it would have.
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

// Deleted is e as its deletion at revision rev shows it: the last state with that resourceVersion. All but that it shares with e: a
// burst of deletions stays in the window of changes, and whole copies would be as much again as the objects were.
func (e *Entry) Deleted(rev int64) *Entry {
	obj, ok := shallow(e.Object)
	if !ok {
		return e
	}
	obj.SetResourceVersion(FormatRevision(rev))
	return NewEntry(e.Key, obj, rev, e.memo)
}

// shallow is a copy of obj whose metadata's own fields may be set; what they and other fields point to is obj's.
func shallow(obj kind.Object) (kind.Object, bool) {
	if _, ok := obj.(runtime.Unstructured); ok {
		c, ok := obj.DeepCopyObject().(kind.Object) // its metadata is a map within a map
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

// memoAge is for how long an encoding is kept at least, and twice that at most.
const memoAge = 5 * time.Minute

// Memo keeps the latest encodings alive up to a number of bytes, and for some minutes; older ones go with the next garbage collection.
// A nil Memo keeps nothing.
type Memo struct {
	budget int
	fields interner

	mu    sync.Mutex
	bytes int
	queue []*[]byte
	old   int  // how many of the queue were there at the last look
	looks bool // a look will come: there is something in the queue
}

// NewMemo returns a memo for that many bytes.
func NewMemo(budget int) *Memo { return &Memo{budget: budget} }

// share lets obj, which the caller owns, share with others what it has in common with them.
func (m *Memo) share(obj kind.Object) {
	if m != nil {
		m.fields.share(obj)
	}
}

func (m *Memo) keep(b *[]byte) {
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
	if !m.looks {
		m.looks = true
		time.AfterFunc(memoAge, m.look)
	}
}

// dropLocked lets go of the n oldest and returns how many bytes they are.
func (m *Memo) dropLocked(n int) (bytes int) {
	for _, b := range m.queue[:n] {
		bytes += len(*b)
	}
	clear(m.queue[:n])
	m.bytes -= bytes
	m.queue, m.old = m.queue[n:], max(m.old-n, 0)
	return bytes
}

// look lets go of what was there at the last look: after a load nothing else takes its place.
func (m *Memo) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	memory.Dropped(m.dropLocked(m.old))
	m.queue = slices.Clone(m.queue) // without the room that the load needed
	m.old = len(m.queue)
	if m.looks = m.old > 0; m.looks {
		time.AfterFunc(memoAge, m.look)
	}
}

// Decoded is the entry of a stored value.
func (c Config) Decoded(kv store.KV, memo *Memo) (*Entry, error) {
	obj, err := c.Codec.Decode(kv.Value)
	if err != nil {
		return nil, err
	}
	if c.Default != nil {
		c.Default(obj)
	}
	obj.SetResourceVersion(FormatRevision(kv.Revision))
	memo.share(obj)
	e := NewEntry(kv.Key, obj, kv.Revision, memo)
	e.sum, e.size = hash(kv.Value), len(kv.Value)
	return e, nil
}

var seed = maphash.MakeSeed()

// hash is never 0.
func hash(b []byte) uint64 { return maphash.Bytes(seed, b) | 1 }

// normalize brings obj, which the caller owns, into the form that a trip through the store would give it.
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
