// SPDX-License-Identifier: Apache-2.0

// Package store is the contract of the revisioned key-value store under the API
// server: bytes in, bytes out, one revision counter for everything. It knows no
// Kubernetes. store/embed and store/etcd implement it; store/storetest is the
// suite both pass.
//
// Invariants:
//  1. Every successful write gets a revision of its own, one above the last.
//  2. A write is acknowledged only when it would survive power loss.
//  3. A read at revision R sees exactly the writes with revision <= R.
//  4. A watch from R delivers every write with revision > R under its prefix,
//     once each, in revision order, or ends with ErrCompacted / ErrSlow: never a gap.
//  5. Byte slices handed in or out are never modified afterwards, by either side.
//  6. A write that answers one of the refusals (ErrNotFound, ErrExists, ErrTooLarge, ErrNoSpace, *ConflictError)
//     changed nothing. After any other error (*UnavailableError, ErrClosed, the end of ctx) its outcome is unknown: it
//     may have happened, or may still happen, and then every watcher learns of it in its place. Who must know reads the
//     key.
//  7. No call blocks beyond its ctx because of a failing disk or an absent peer.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sentinel outcomes. Match with errors.Is.
var (
	ErrNotFound  = errors.New("key not found")
	ErrExists    = errors.New("key exists already")
	ErrCompacted = errors.New("revision has been compacted")
	ErrFuture    = errors.New("revision is in the future")
	ErrSlow      = errors.New("watcher fell too far behind")
	ErrClosed    = errors.New("store is closed")
	// ErrTooLarge refuses a value that is larger than the store takes.
	ErrTooLarge = errors.New("value is too large")
	// ErrNoSpace refuses a write that would take more room than the store's quota leaves. The words are etcd's, which
	// clients know.
	ErrNoSpace = errors.New("etcdserver: mvcc: database space exceeded")
)

// Reserve is how much room above the store's quota a write may take, or how much below it the write leaves.
type Reserve uint8

const (
	// NoReserve is for what tenants write.
	NoReserve Reserve = iota
	// LeaveRoom is for what may be lost, such as events: it leaves the last eighth of the quota to other writes.
	LeaveRoom
	// SmallReserve is an eighth of the quota. It is for what components derive from the objects of tenants, who thereby
	// decide how large that is.
	SmallReserve
	// FullReserve has no bound: it is for writes that keep a full cluster running and let it become smaller again, and
	// that no tenant can make without end.
	FullReserve
)

type reserve struct{}

// UseReserve returns a context whose writes may use r.
func UseReserve(ctx context.Context, r Reserve) context.Context {
	if r == NoReserve {
		return ctx
	}
	return context.WithValue(ctx, reserve{}, r)
}

// ReserveOf is the reserve that ctx was given by UseReserve. Stores call it.
func ReserveOf(ctx context.Context) Reserve {
	r, _ := ctx.Value(reserve{}).(Reserve)
	return r
}

// ConflictError is returned by Update and Delete when the key's revision is not the expected one.
// Current is the key as it is now, so that the caller can retry without another read.
type ConflictError struct {
	Expected int64
	Current  KV
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("key %s is at revision %d, not %d", e.Current.Key, e.Current.Revision, e.Expected)
}

// UnavailableError is the answer of writes while the store can take none; reads go on when they can.
type UnavailableError struct {
	// Cause is what failed, with the name of the file or the peer.
	Cause error
	// Full reports that the disk, or the quota, is full.
	Full bool
	// Lasting reports that the store does not recover by itself: it must be opened again.
	Lasting bool
}

func (e *UnavailableError) Error() string {
	switch {
	case e.Full:
		return fmt.Sprintf("store takes no writes: the disk is full (%v)", e.Cause)
	case e.Lasting:
		return fmt.Sprintf("store takes no writes until it is opened again: the disk failed (%v)", e.Cause)
	}
	return fmt.Sprintf("store takes no writes for now: %v", e.Cause)
}

func (e *UnavailableError) Unwrap() error { return e.Cause }

// KV is a key with its value and the revision that last wrote it.
type KV struct {
	Key      string
	Value    []byte
	Revision int64
	// Created is the revision that created the key, and Version counts the writes since, that one included: etcd's
	// create_revision and version. Both are 0 where that is not known, as of keys that an older program wrote.
	Created, Version int64
	// Stale asks for the value to be written again although it is the same: it is stored in a form that is to go.
	// Stores themselves never set it; what encrypts values on the way does.
	Stale bool
}

// Written is the receipt of a write. Sync is how long the write waited for the disk.
type Written struct {
	Revision int64
	Sync     time.Duration
}

// Range asks for the keys in [From, end of Prefix) where From defaults to Prefix.
type Range struct {
	Prefix string // keys that start with it; empty: all keys
	From   string // first key wanted, for the next page; empty: Prefix
	// Revision to read at; 0: the latest. ErrCompacted when too old, ErrFuture when not yet reached.
	Revision int64
	Limit    int // 0: no limit
	// NoCount reports that no one asks for Page.Remaining, which may then be anything above 0 where More is true.
	// Counting walks all keys.
	NoCount bool
}

// Page is the answer to a Range.
type Page struct {
	Items     []KV  // in key order
	Revision  int64 // the revision the read was done at
	More      bool  // keys beyond Limit remain
	Remaining int64 // how many
}

// EventType reports what a write did.
type EventType uint8

// The event types.
const (
	Created EventType = iota + 1
	Updated
	Deleted
)

// Event is one write. For Deleted, KV is the last version, but for KV.Revision, which is the deletion's own.
// Prev is the value before (nil for Created).
type Event struct {
	Type EventType
	KV   KV
	Prev []byte
}

// Watcher delivers batches in revision order. Events is closed when the watch ends; Err then says why (nil after Stop
// or ctx end).
type Watcher interface {
	Events() <-chan []Event
	Err() error
	Stop()
}

// Reader reads.
type Reader interface {
	// Get returns the key at revision rev (0: latest) and the store's revision. ErrNotFound comes with that revision
	// too.
	Get(ctx context.Context, key string, rev int64) (KV, int64, error)
	List(ctx context.Context, r Range) (Page, error)
	// Revision is the latest acknowledged revision.
	Revision(ctx context.Context) (int64, error)
}

// Writer writes single keys; each call is one revision.
type Writer interface {
	// Create fails with ErrExists when the key is there.
	Create(ctx context.Context, key string, value []byte) (Written, error)
	// Update replaces the value if the key is at revision expected, else *ConflictError, or ErrNotFound.
	Update(ctx context.Context, key string, value []byte, expected int64) (Written, error)
	// Delete removes the key if it is at revision expected (0: whatever it is) and returns what it held.
	Delete(ctx context.Context, key string, expected int64) (KV, Written, error)
}

// Store is the whole contract.
type Store interface {
	Reader
	Writer
	// Watch delivers writes under prefix after revision from (0: from now on). ErrCompacted when from is too old.
	Watch(ctx context.Context, prefix string, from int64) (Watcher, error)
	// Compact forgets history before rev: reads and watches older than rev answer ErrCompacted.
	Compact(ctx context.Context, rev int64) error
	// Health is nil while the store takes writes, else what writes would answer.
	Health(ctx context.Context) error
	// Size is how many bytes the store takes on its disk.
	Size(ctx context.Context) (int64, error)
	// Close ends all watches and waits for writes under way, unless the store is unavailable.
	Close() error
}
