// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"keelson/store"
)

// Get reads one key.
func (s *Store) Get(ctx context.Context, key string, rev int64) (store.KV, int64, error) {
	if err := checkKey(key); err != nil {
		return store.KV{}, 0, err
	}
	if err := s.enter(ctx); err != nil {
		return store.KV{}, 0, err
	}
	defer s.leave()
	for {
		latest := s.durable.Load()
		at := rev
		if at == 0 {
			at = latest
		}
		if at > latest {
			return store.KV{}, latest, store.ErrFuture
		}
		kv, typ, err := s.version(key, at)
		switch {
		case err != nil:
			return store.KV{}, latest, err
		case at < s.compacted.Load(): // asked after the read: compaction marks before it deletes
			if rev == 0 {
				continue
			}
			return store.KV{}, latest, store.ErrCompacted
		case typ == 0 || typ == store.Deleted:
			return store.KV{}, latest, store.ErrNotFound
		}
		return kv, latest, nil
	}
}

// version is the newest version of key at or below rev; type 0 when there is none. A tombstone has type Deleted and no
// value.
func (s *Store) version(key string, rev int64) (store.KV, store.EventType, error) {
	lower := putVersionKey(make([]byte, 0, 2*len(key)+24), key, rev)
	upper := putKeyEnd(lower[len(lower):], lower[1:1+len(key)])
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return store.KV{}, 0, fmt.Errorf("read %s: %w", key, err)
	}
	kv, typ, err := readVersion(it, lower, key)
	if err = errors.Join(err, it.Close()); err != nil {
		return store.KV{}, 0, fmt.Errorf("read %s: %w", key, err)
	}
	return kv, typ, nil
}

func readVersion(it *pebble.Iterator, from []byte, key string) (store.KV, store.EventType, error) {
	if !it.SeekPrefixGE(from) {
		return store.KV{}, 0, it.Error()
	}
	_, at, err := splitVersionKey(it.Key())
	if err != nil {
		return store.KV{}, 0, err
	}
	return readUnder(it, key, at)
}

// readUnder copies the version under it; a tombstone's value is nil.
func readUnder(it *pebble.Iterator, key string, rev int64) (store.KV, store.EventType, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return store.KV{}, 0, err
	}
	kv, typ, err := splitVersion(v, key, rev)
	if err == nil && typ != store.Deleted {
		kv.Value = append(make([]byte, 0, len(kv.Value)), kv.Value...)
	}
	return kv, typ, err
}

// List reads a page of keys.
func (s *Store) List(ctx context.Context, r store.Range) (store.Page, error) {
	if err := s.enter(ctx); err != nil {
		return store.Page{}, err
	}
	defer s.leave()
	for {
		page, err := s.list(ctx, r)
		if errors.Is(err, store.ErrCompacted) && r.Revision == 0 {
			continue // overtaken; the latest revision is newer by now
		}
		return page, err
	}
}

func (s *Store) list(ctx context.Context, rng store.Range) (store.Page, error) {
	latest := s.durable.Load()
	at := rng.Revision
	if at == 0 {
		at = latest
	}
	if at > latest {
		return store.Page{}, store.ErrFuture
	}
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: putFrom(nil, max(rng.From, rng.Prefix)),
		UpperBound: prefixEnd(append([]byte{versionPrefix}, rng.Prefix...)),
	})
	if err != nil {
		return store.Page{}, fmt.Errorf("list %s: %w", rng.Prefix, err)
	}
	page := store.Page{Revision: at}
	err = collect(ctx, it, at, rng, &page)
	if err = errors.Join(err, it.Close()); err != nil {
		return store.Page{}, fmt.Errorf("list %s: %w", rng.Prefix, err)
	}
	if at < s.compacted.Load() { // asked after the read: compaction marks before it deletes
		return store.Page{}, store.ErrCompacted
	}
	page.More = page.Remaining > 0
	return page, nil
}

// seekAfter is how many versions of one key are stepped over before a seek is cheaper.
const seekAfter = 8

// collect walks the versions under it, the newest of each key first, and keeps those that were current at revision at.
func collect(ctx context.Context, it *pebble.Iterator, at int64, rng store.Range, page *store.Page) error {
	var done []byte // the key whose answer is known
	var seek []byte
	stepped := 0
	for ok := it.First(); ok; {
		key, rev, err := splitVersionKey(it.Key())
		if err != nil {
			return err
		}
		switch same := done != nil && bytes.Equal(key, done); {
		case !same && rev <= at:
			if err := add(ctx, it, key, rev, rng.Limit, page); err != nil {
				return err
			}
			if rng.NoCount && page.Remaining > 0 {
				return nil
			}
			done = append(done[:0], key...)
			stepped = 0
			ok = it.Next()
		case stepped < seekAfter:
			stepped++
			ok = it.Next()
		case same:
			stepped = 0
			seek = putKeyEnd(seek[:0], done)
			ok = it.SeekGE(seek)
		default: // too new
			stepped = 0
			seek = putVersionKey(seek[:0], string(key), at)
			ok = it.SeekGE(seek)
		}
	}
	return it.Error()
}

func add(ctx context.Context, it *pebble.Iterator, key []byte, rev int64, limit int, page *store.Page) error {
	if limit > 0 && len(page.Items) >= limit {
		v, err := it.ValueAndErr()
		if err == nil && len(v) > 0 && v[0] != byte(store.Deleted) {
			page.Remaining++
		}
		return err
	}
	kv, typ, err := readUnder(it, string(key), rev)
	if err != nil || typ == store.Deleted {
		return err
	}
	page.Items = append(page.Items, kv)
	if len(page.Items)%1024 == 0 {
		return ctx.Err()
	}
	return nil
}
