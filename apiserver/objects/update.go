// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/api/kind"
	"keelson/store"
)

// Update calls updateFunc with the current state, again after a conflict.
func (r *Records) Update(
	ctx context.Context, namespace, name string, createMissing bool, updateFunc UpdateFunc,
) (*Entry, bool, Receipt, error) {
	begin := time.Now()
	key, err := r.Key(namespace, name)
	if err != nil {
		return nil, false, Receipt{}, err
	}
	current, err := r.latest(ctx, key)
	for {
		if errors.Is(err, store.ErrNotFound) && createMissing {
			current = nil
			err = nil
		}
		if err != nil {
			return nil, false, Receipt{}, r.storeError(err, name)
		}
		e, w, failure := r.tryUpdate(ctx, key, name, current, updateFunc)
		if failure == nil {
			return e, current == nil, Receipt{
				Key:      key,
				Revision: w.Revision,
				Took:     time.Since(begin),
				Sync:     w.Sync,
			}, nil
		}
		var raced bool
		if current, raced, err = r.resolveConflict(ctx, key, failure); !raced {
			return nil, false, Receipt{}, r.storeError(failure, name)
		}
	}
}

// tryUpdate makes one attempt; for an unchanged object Written is empty.
func (r *Records) tryUpdate(
	ctx context.Context, key, name string, current *Entry, f UpdateFunc,
) (*Entry, store.Written, error) {
	entry := current
	var written store.Written
	var before kind.Object
	if current != nil {
		before = current.Object
	}
	err := f(ctx, before, func(next kind.Object) error {
		if current != nil && next == before {
			return nil
		}
		e, w, err := r.replace(ctx, key, name, current, next)
		if err == nil {
			entry = e
			written = w
		}
		return err
	})
	return entry, written, err
}

// replace stores next in place of current (nil: there is none), unless it is the same.
func (r *Records) replace(
	ctx context.Context, key, name string, current *Entry, next kind.Object,
) (*Entry, store.Written, error) {
	if current != nil {
		if rv := next.GetResourceVersion(); rv != "" && rv != current.Object.GetResourceVersion() {
			return nil, store.Written{}, r.conflict(name)
		}
	}
	value, entry, err := r.encode(key, next)
	if err != nil {
		return nil, store.Written{}, err
	}
	if current != nil {
		same, err := r.unchanged(ctx, current, entry, value)
		if err != nil || same {
			return current, store.Written{}, err
		}
	}
	w, err := r.put(value, entry, func() (store.Written, error) {
		if current == nil {
			return r.store.Create(ctx, key, value)
		}
		return r.store.Update(ctx, key, value, current.Revision)
	})
	return entry, w, err
}

// unchanged reports whether value equals the stored bytes. It reads these only if the hashes are equal.
func (r *Records) unchanged(ctx context.Context, current, e *Entry, value []byte) (bool, error) {
	if current.sum != e.sum {
		return false, nil
	}
	kv, _, err := r.store.Get(ctx, current.Key, 0)
	if err != nil {
		return false, err
	}
	return kv.Revision == current.Revision && !kv.Stale && bytes.Equal(kv.Value, value), nil
}

// resolveConflict returns after a failed write whether it was a conflict, and the state for the retry: the newer entry,
// or ErrNotFound if the object was deleted.
func (r *Records) resolveConflict(
	ctx context.Context, key string, failure error,
) (current *Entry, raced bool, err error) {
	var conflict *store.ConflictError
	switch {
	case errors.As(failure, &conflict):
		current, err = r.Decoded(conflict.Current, r.memo)
		return current, true, err
	case errors.Is(failure, store.ErrExists):
		current, err = r.read(ctx, key)
		return current, true, err
	case errors.Is(failure, store.ErrNotFound):
		return nil, true, store.ErrNotFound
	}
	return nil, false, nil
}

// Delete removes an object that check accepts; check may be nil.
func (r *Records) Delete(ctx context.Context, namespace, name string, check func(
	kind.Object,
) error,
) (*Entry, Receipt, error) {
	begin := time.Now()
	key, err := r.Key(namespace, name)
	if err != nil {
		return nil, Receipt{}, err
	}
	current, err := r.latest(ctx, key)
	for {
		if err != nil {
			return nil, Receipt{}, r.storeError(err, name)
		}
		if check != nil {
			if err := check(current.Object); err != nil {
				return nil, Receipt{}, err
			}
		}
		_, w, failure := r.store.Delete(ctx, key, current.Revision)
		if failure == nil {
			return current.Deleted(w.Revision), Receipt{
				Key:      key,
				Revision: w.Revision,
				Took:     time.Since(begin),
				Sync:     w.Sync,
			}, nil
		}
		var raced bool
		if current, raced, err = r.resolveConflict(ctx, key, failure); !raced {
			return nil, Receipt{}, r.storeError(failure, name)
		}
	}
}

// Unreadable is Kubernetes' error for a value that cannot be decoded.
func Unreadable(key string, rev int64, err error) error {
	return fmt.Errorf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
		"object not decodable revision=%d: %w", key, rev, err)
}

// errNotCorrupt rejects the unsafe deletion of a readable object.
var errNotCorrupt = errors.New("unsafe deletion is not allowed because the object is decodable from storage")

// DeleteCorrupt removes a stored object that cannot be decoded, without a check and without returning it. A readable
// object is a conflict.
func (r *Records) DeleteCorrupt(ctx context.Context, namespace, name string, dry bool) (Receipt, error) {
	begin := time.Now()
	key, err := r.Key(namespace, name)
	if err != nil {
		return Receipt{}, err
	}
	kv, _, err := r.store.Get(ctx, key, 0)
	if err == nil {
		if _, failed := r.Decoded(kv, nil); failed == nil {
			return Receipt{}, apierrors.NewConflict(r.Resource, name, fmt.Errorf(
				"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %w", key,
				errNotCorrupt))
		}
	} else if kv.Revision == 0 {
		return Receipt{}, r.storeError(err, name)
	}
	if dry {
		return Receipt{Key: key}, nil
	}
	_, w, err := r.store.Delete(ctx, key, kv.Revision)
	if err != nil {
		return Receipt{}, r.storeError(err, name)
	}
	return Receipt{
		Key:      key,
		Revision: w.Revision,
		Took:     time.Since(begin),
		Sync:     w.Sync,
	}, nil
}
