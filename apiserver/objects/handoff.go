// SPDX-License-Identifier: Apache-2.0

package objects

import "sync"

// Handoff passes objects from their writer to the cache that receives them from the store's watch, so that a server
// never decodes what it has just encoded. The key is the address of the written bytes; with a store that does not
// return the same bytes (a remote one) the cache decodes. A nil Handoff passes nothing.
type Handoff struct {
	mu sync.Mutex
	m  map[*byte]*Entry
	// written are the keys of entries that were written and not yet taken, oldest first.
	written []*byte
}

// maxPending limits entries that wait for a cache.
const maxPending = 256

// NewHandoff returns an empty one.
func NewHandoff() *Handoff { return &Handoff{m: map[*byte]*Entry{}} }

// offer is called before the write; value is never empty.
func (h *Handoff) offer(value []byte, e *Entry) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.m[&value[0]] = e
}

// withdraw is called after a failed write.
func (h *Handoff) withdraw(value []byte) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.m, &value[0])
}

// settle is called after a successful write. Writer and cache may come in either order; the first one sets the
// revision, under the lock.
func (h *Handoff) settle(value []byte, e *Entry, revision int64) {
	if h == nil {
		e.settle(revision)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e.settle(revision)
	if h.m[&value[0]] == nil {
		return
	}
	h.written = append(h.written, &value[0])
	if len(h.written) > maxPending {
		for _, name := range h.written[:maxPending/2] {
			delete(h.m, name)
		}
		h.written = append([]*byte(nil), h.written[maxPending/2:]...)
	}
}

// Take returns the entry offered with these bytes and written at that revision, or nil. It returns an entry only once.
func (h *Handoff) Take(value []byte, revision int64) *Entry {
	if h == nil || len(value) == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.m[&value[0]]
	if e != nil {
		e.settle(revision)
		delete(h.m, &value[0])
	}
	return e
}

// settle sets the revision once; the object is shared afterwards.
func (e *Entry) settle(revision int64) {
	if e.Revision == 0 {
		e.Object.SetResourceVersion(FormatRevision(revision))
		e.Revision = revision
	}
}
