// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"keelson/store"
)

// transact runs one operation under a condition. The answer's first response is the operation's, or what orElse says.
func (s *Store) transact(
	ctx context.Context, key string, cmp clientv3.Cmp, then clientv3.Op,
) (*clientv3.TxnResponse, store.Written, error) {
	if err := checkKey(key); err != nil {
		return nil, store.Written{}, err
	}
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return nil, store.Written{}, err
	}
	defer end()
	begin := time.Now()
	r, err := s.client.Txn(bounded).If(cmp).Then(then).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, store.Written{}, s.meaning(ctx, err)
	}
	return r, store.Written{Revision: s.observe(r.Header), Sync: time.Since(begin)}, nil
}

// refusal is why a transaction that expected the key at revision expected did nothing.
func refusal(r *clientv3.TxnResponse, expected int64) error {
	kvs := r.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return store.ErrNotFound
	}
	return &store.ConflictError{Expected: expected, Current: fromEtcd(kvs[0])}
}

// Create stores a new key.
func (s *Store) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	r, w, err := s.transact(ctx, key, clientv3.Compare(clientv3.ModRevision(key), "=", 0),
		clientv3.OpPut(key, string(value)))
	if err != nil {
		return store.Written{}, err
	}
	if !r.Succeeded {
		return store.Written{}, store.ErrExists
	}
	return w, nil
}

// Update replaces the value of a key that is at revision expected.
func (s *Store) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	at := expected
	if at <= 0 {
		at = -1 // 0 would mean absent to etcd; no key is at -1
	}
	r, w, err := s.transact(ctx, key, clientv3.Compare(clientv3.ModRevision(key), "=", at),
		clientv3.OpPut(key, string(value)))
	if err != nil {
		return store.Written{}, err
	}
	if !r.Succeeded {
		return store.Written{}, refusal(r, expected)
	}
	return w, nil
}

// Delete removes a key that is at revision expected (0: at any).
func (s *Store) Delete(ctx context.Context, key string, expected int64) (store.KV, store.Written, error) {
	c := clientv3.Compare(clientv3.ModRevision(key), "=", expected)
	if expected == 0 {
		c = clientv3.Compare(clientv3.ModRevision(key), ">", 0)
	}
	r, w, err := s.transact(ctx, key, c, clientv3.OpDelete(key, clientv3.WithPrevKV()))
	if err != nil {
		return store.KV{}, store.Written{}, err
	}
	if !r.Succeeded {
		return store.KV{}, store.Written{}, refusal(r, expected)
	}
	return fromEtcd(r.Responses[0].GetResponseDeleteRange().PrevKvs[0]), w, nil
}
