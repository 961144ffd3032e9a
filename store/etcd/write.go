// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"keelson/store"
)

// write is one operation on a key that must be at revision since; 0: it must be absent.
type write struct {
	key   string
	since int64
	then  clientv3.Op
	// done reports whether an event is what then does.
	done func(*clientv3.Event) bool
}

// is reports whether an event is this write.
func (w write) is(e *clientv3.Event) bool {
	if w.since == 0 {
		return e.IsCreate() && w.done(e)
	}
	return e.PrevKv != nil && e.PrevKv.ModRevision == w.since && w.done(e)
}

// transact does the write and returns the previous key, if then asks for it. When the answer of an attempt does
// not arrive, history says whether the write has happened; if not, it is repeated. The condition on the key lets it
// happen once.
func (s *Store) transact(ctx context.Context, w write) (before *mvccpb.KeyValue, written store.Written, err error) {
	if err := checkKey(w.key); err != nil {
		return nil, store.Written{}, err
	}
	bounded, end, err := s.begin(ctx)
	if err != nil {
		return nil, store.Written{}, err
	}
	defer end()
	begin := time.Now()
	base := max(w.since, s.seen.Load())
	var refused error
	again := false
	repeated := false
	err = s.again(bounded, func(attempt context.Context) error {
		repeated = again
		again = true
		look := func() (bool, error) {
			e, err := s.happened(attempt, w, base)
			if e != nil {
				before = e.PrevKv
				written.Revision = e.Kv.ModRevision
				refused = nil
			}
			return e != nil, err
		}
		if repeated {
			if done, err := look(); done || err != nil {
				return err
			}
		}
		r, err := s.client.Txn(attempt).If(clientv3.Compare(clientv3.ModRevision(w.key), "=", w.since)).Then(w.then).
			Else(clientv3.OpGet(w.key)).Commit()
		if err != nil {
			return err
		}
		written.Revision = s.observe(r.Header)
		if r.Succeeded {
			before = previous(r)
			return nil
		}
		refused = refusal(r, w.since)
		if repeated { // an earlier attempt may have happened meanwhile
			_, err = look()
		}
		return err
	})
	switch {
	case repeated && errors.Is(err, rpctypes.ErrNoSpace): // an earlier attempt may still happen
		cause := fmt.Errorf("etcd at %s: %w", s.servers, err)
		return nil, store.Written{}, &store.UnavailableError{Cause: cause, Full: true}
	case err != nil:
		return nil, store.Written{}, s.meaning(ctx, err)
	}
	if refused != nil {
		return nil, store.Written{}, refused
	}
	written.Sync = time.Since(begin)
	return before, written, nil
}

// previous is the key as a deletion found it; nil for other operations.
func previous(r *clientv3.TxnResponse) *mvccpb.KeyValue {
	if kvs := r.Responses[0].GetResponseDeleteRange().GetPrevKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// refusal is why a transaction did nothing that expected the key at revision since.
func refusal(r *clientv3.TxnResponse, since int64) error {
	kvs := r.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0:
		return store.ErrNotFound
	case since == 0:
		return store.ErrExists
	}
	return &store.ConflictError{Expected: since, Current: fromEtcd(kvs[0])}
}

// Create stores a new key.
func (s *Store) Create(ctx context.Context, key string, value []byte) (store.Written, error) {
	_, w, err := s.transact(ctx, write{key: key, then: clientv3.OpPut(key, string(value)), done: put(value)})
	return w, err
}

// Update replaces the value of a key that is at revision expected.
func (s *Store) Update(ctx context.Context, key string, value []byte, expected int64) (store.Written, error) {
	if expected <= 0 {
		expected = -1 // 0 would mean absent; no key is at -1
	}
	_, w, err := s.transact(ctx, write{key, expected, clientv3.OpPut(key, string(value)), put(value)})
	return w, err
}

// Delete removes a key that is at revision expected (0: at any).
func (s *Store) Delete(ctx context.Context, key string, expected int64) (store.KV, store.Written, error) {
	for anyRevision := expected == 0; ; {
		if anyRevision {
			now, _, err := s.Get(ctx, key, 0)
			if err != nil {
				return store.KV{}, store.Written{}, err
			}
			expected = now.Revision
		}
		before, w, err := s.transact(ctx, write{key, expected, clientv3.OpDelete(key, clientv3.WithPrevKV()), deletion})
		if _, conflict := errors.AsType[*store.ConflictError](err); conflict && anyRevision {
			continue
		}
		if err != nil {
			return store.KV{}, store.Written{}, err
		}
		return fromEtcd(before), w, nil
	}
}

func deletion(e *clientv3.Event) bool { return e.Type == clientv3.EventTypeDelete }
