// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"

	"keelson/store"
)

// change is what a write wants, decided from the key's current version.
type change struct {
	typ   store.EventType
	value []byte
}

// Create stores a new key.
func (s *Store) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	_, w, err := s.write(ctx, key, func(_ store.KV, found bool) (change, error) {
		if found {
			return change{}, store.ErrExists
		}
		return change{store.Created, value}, nil
	})
	return w, err
}

// Update replaces the value of a key that is at revision expected.
func (s *Store) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	_, w, err := s.write(ctx, key, func(cur store.KV, found bool) (change, error) {
		switch {
		case !found:
			return change{}, store.ErrNotFound
		case cur.Revision != expected:
			return change{}, &store.ConflictError{Expected: expected, Current: cur}
		}
		return change{store.Updated, value}, nil
	})
	return w, err
}

// Delete removes a key that is at revision expected (0: at any).
func (s *Store) Delete(ctx context.Context, key string, expected int64) (store.KV, store.Written, error) {
	return s.write(ctx, key, func(cur store.KV, found bool) (change, error) {
		switch {
		case !found:
			return change{}, store.ErrNotFound
		case expected != 0 && cur.Revision != expected:
			return change{}, &store.ConflictError{Expected: expected, Current: cur}
		}
		return change{store.Deleted, nil}, nil
	})
}

// write has the committer decide on the latest version of key and waits until its word is on disk. It returns the
// version before.
func (s *Store) write(
	ctx context.Context, key string, decide func(cur store.KV, found bool) (change, error),
) (store.KV, store.Written, error) {
	if err := checkKey(key); err != nil {
		return store.KV{}, store.Written{}, err
	}
	if err := s.enter(ctx); err != nil {
		return store.KV{}, store.Written{}, err
	}
	defer s.leave()
	r := &request{
		key:      key,
		decide:   decide,
		reserved: store.ReserveOf(ctx),
		done:     make(chan struct{}),
	}
	if err := s.submit(ctx, r); err != nil {
		return store.KV{}, store.Written{}, err
	}
	return r.old, store.Written{Revision: r.rev, Sync: r.sync}, nil
}
