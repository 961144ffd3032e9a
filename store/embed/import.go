// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"

	"keelson/store"
)

// Import makes a store in o.Dir, which must not hold one, of the keys that fill puts, each at the revision that it had.
// The store is at the revision that fill returns, with no history before. Who needs all or nothing imports into a
// directory that is renamed afterwards.
func Import(ctx context.Context, o Options, fill func(put func(
	store.KV,
) error) (revision int64, err error),
) (err error) {
	s, err := Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if s.durable.Load() != firstRevision {
		return fmt.Errorf("%s holds a store already", o.Dir)
	}
	b := s.db.NewBatch()
	newest := int64(firstRevision)
	put := func(kv store.KV) error {
		if err := checkKey(kv.Key); err != nil {
			return err
		}
		if kv.Revision <= 0 {
			return fmt.Errorf("key %s has revision %d", kv.Key, kv.Revision)
		}
		newest = max(newest, kv.Revision)
		typ := store.Updated
		if kv.Created == kv.Revision {
			typ = store.Created
		}
		if err := b.Set(putVersionKey(nil, kv.Key, kv.Revision), putVersion(nil, typ, kv), nil); err != nil {
			return err
		}
		if b.Len() < groupBytes {
			return nil
		}
		full := b
		b = s.db.NewBatch()
		return s.submitBatch(ctx, full)
	}
	revision, err := fill(put)
	if err != nil {
		return err
	}
	if revision < newest {
		return fmt.Errorf("a key is at revision %d, the store only at %d", newest, revision)
	}
	if err := b.Set(keyCompacted, putNumber(revision), nil); err != nil {
		return err
	}
	if err := s.submitBatch(ctx, b); err != nil {
		return err
	}
	s.durable.Store(revision) // Close writes it into clean-stop
	return nil
}
