// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"keelson/store"
)

func checkKey(key string) error {
	if key == "" || strings.IndexByte(key, 0) >= 0 {
		return fmt.Errorf("store key %q: must not be empty nor contain a zero byte", key)
	}
	return nil
}

func fromEtcd(kv *mvccpb.KeyValue) store.KV {
	return store.KV{
		Key:      string(kv.Key),
		Value:    kv.Value,
		Revision: kv.ModRevision,
		Created:  kv.CreateRevision,
		Version:  kv.Version,
	}
}

// Revision is the latest revision that any API server has been acknowledged.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	rev, err := s.fresh.get(bounded)
	return rev, s.meaning(ctx, err)
}

// ask asks etcd for its revision, through its leader. The key is of no matter.
func (s *Store) ask(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	r, err := s.get(ctx, "keelson", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return s.observe(r.Header), nil
}

// Get reads one key.
func (s *Store) Get(ctx context.Context, key string, rev int64) (store.KV, int64, error) {
	if err := checkKey(key); err != nil {
		return store.KV{}, 0, err
	}
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return store.KV{}, 0, err
	}
	defer end()
	r, err := s.get(bounded, key, clientv3.WithRev(rev))
	if err != nil {
		return store.KV{}, 0, s.meaning(ctx, err)
	}
	latest := s.observe(r.Header)
	if len(r.Kvs) == 0 {
		return store.KV{}, latest, store.ErrNotFound
	}
	return fromEtcd(r.Kvs[0]), latest, nil
}

// List reads a page of keys.
func (s *Store) List(ctx context.Context, rng store.Range) (store.Page, error) {
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return store.Page{}, err
	}
	defer end()
	from := max(rng.From, rng.Prefix)
	to := clientv3.GetPrefixRangeEnd(rng.Prefix)
	if from == "" {
		from = "\x00" // before every key
	}
	beyond := to != "\x00" && from >= to
	if beyond {
		from = rng.Prefix // etcd has no empty ranges; it may still say that the revision is gone
	}
	opts := []clientv3.OpOption{
		clientv3.WithRange(to), clientv3.WithRev(rng.Revision), clientv3.WithLimit(int64(rng.Limit)),
	}
	if beyond {
		opts = append(opts, clientv3.WithCountOnly())
	}
	got, err := s.get(bounded, from, opts...)
	if err != nil {
		return store.Page{}, s.meaning(ctx, err)
	}
	page := store.Page{Revision: rng.Revision}
	if latest := s.observe(got.Header); page.Revision == 0 {
		page.Revision = latest
	}
	if beyond {
		return page, nil
	}
	page.Items = make([]store.KV, len(got.Kvs))
	for i, kv := range got.Kvs {
		page.Items[i] = fromEtcd(kv)
	}
	page.More = got.More
	page.Remaining = got.Count - int64(len(got.Kvs))
	return page, nil
}
