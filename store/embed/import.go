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
	st, err := Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if st.durable.Load() != firstRevision {
		return fmt.Errorf("%s holds a store already", o.Dir)
	}
	batch := st.db.NewBatch()
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
		if err := batch.Set(putVersionKey(nil, kv.Key, kv.Revision), putVersion(nil, typ, kv), nil); err != nil {
			return err
		}
		if batch.Len() < groupBytes {
			return nil
		}
		full := batch
		batch = st.db.NewBatch()
		return st.submitBatch(ctx, full)
	}
	revision, err := fill(put)
	if err != nil {
		return err
	}
	if revision < newest {
		return fmt.Errorf("a key is at revision %d, the store only at %d", newest, revision)
	}
	if err := batch.Set(keyCompacted, putNumber(revision), nil); err != nil {
		return err
	}
	if err := st.submitBatch(ctx, batch); err != nil {
		return err
	}
	st.durable.Store(revision) // Close writes it into clean-stop
	return nil
}
