// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/api/kind"
	"keelson/store"
)

// Records reads and writes one resource's objects in the store itself, without a cache. The watch cache writes through
// it and reads from it what is older than its history.
type Records struct {
	Config
	store   store.Store
	memo    *Memo
	handoff *Handoff
	latest  func(ctx context.Context, key string) (*Entry, error)
}

// New returns the records of the resource c.
func New(c Config, s store.Store) *Records {
	r := &Records{Config: c.withDefaults(), store: s}
	r.latest = r.read
	return r
}

// Cached is New for a cache: latest returns the current entry of a key or store.ErrNotFound. Written entries are passed
// through h.
func Cached(c Config, s store.Store, m *Memo, h *Handoff, latest func(
	ctx context.Context, key string,
) (*Entry, error),
) *Records {
	return &Records{
		Config:  c.withDefaults(),
		store:   s,
		memo:    c.memoOf(m),
		handoff: h,
		latest:  latest,
	}
}

func (r *Records) read(ctx context.Context, key string) (*Entry, error) {
	kv, _, err := r.store.Get(ctx, key, 0)
	if err != nil {
		return nil, err
	}
	return r.Decoded(kv, r.memo)
}

// Get reads the latest state.
func (r *Records) Get(ctx context.Context, namespace, name, rv string) (*Entry, error) {
	key, err := r.Key(namespace, name)
	if err != nil {
		return nil, err
	}
	rev, err := ParseRevision(rv)
	if err != nil {
		return nil, err
	}
	if rev > 0 {
		current, err := r.store.Revision(ctx)
		if err != nil {
			return nil, r.storeError(err, name)
		}
		if current < rev {
			return nil, TooLarge(rev, current)
		}
	}
	e, err := r.read(ctx, key)
	if err != nil {
		return nil, r.storeError(err, name)
	}
	return e, nil
}

// List reads a page from the store.
func (r *Records) List(ctx context.Context, q ListQuery) (*List, error) {
	p, err := r.Plan(&q)
	if err != nil {
		return nil, err
	}
	return r.ListPlanned(ctx, &q, p)
}

// chunk is the number of keys per store read.
const chunk = 1000

// ListPlanned is List for interpreted options.
func (r *Records) ListPlanned(ctx context.Context, query *ListQuery, plan Plan) (*List, error) {
	from := store.Range{
		Prefix:  plan.Prefix,
		From:    plan.From,
		Limit:   chunk,
		NoCount: true,
	}
	if plan.Exact {
		from.Revision = plan.Revision
	}
	var page *Page
	for {
		got, err := r.store.List(ctx, from)
		switch {
		case errors.Is(err, store.ErrCompacted):
			return nil, plan.Expired()
		case errors.Is(err, store.ErrFuture):
			return nil, r.tooLarge(ctx, from.Revision)
		case err != nil:
			return nil, r.storeError(err, "")
		case got.Revision < plan.Revision:
			return nil, TooLarge(plan.Revision, got.Revision)
		}
		if page == nil {
			page = r.NewPage(query, plan, got.Revision)
			from.Revision = got.Revision
		}
		for _, kv := range got.Items {
			e, err := r.Decoded(kv, r.memo)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", kv.Key, err)
			}
			if !page.Add(e) {
				return page.List(), nil
			}
		}
		if !got.More {
			return page.List(), nil
		}
		from.From = got.Items[len(got.Items)-1].Key + "\x00"
	}
}

func (r *Records) tooLarge(ctx context.Context, rev int64) error {
	current, err := r.store.Revision(ctx)
	if err != nil {
		return r.storeError(err, "")
	}
	return TooLarge(rev, current)
}

// Create stores a new object.
func (r *Records) Create(ctx context.Context, obj kind.Object) (*Entry, Receipt, error) {
	begin := time.Now()
	key, err := r.Key(obj.GetNamespace(), obj.GetName())
	if err != nil {
		return nil, Receipt{}, err
	}
	// An invalid version, or 0, is ignored.
	if v, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err == nil && v != 0 {
		return nil, Receipt{}, ErrVersionOnCreate
	}
	value, e, err := r.encode(key, obj)
	if err != nil {
		return nil, Receipt{}, err
	}
	w, err := r.put(value, e, func() (store.Written, error) { return r.store.Create(ctx, key, value) })
	if err != nil {
		return nil, Receipt{}, r.storeError(err, obj.GetName())
	}
	return e, Receipt{
		Key:      key,
		Revision: w.Revision,
		Took:     time.Since(begin),
		Sync:     w.Sync,
	}, nil
}

// Limits of a stored object in bytes. maxObjectBytes is etcd's default; without it, patches could grow an object
// without limit. An object in deletion may be larger: earlier versions stored objects up to the limit of a request
// body, and it must be possible to delete these.
const (
	maxObjectBytes  = 3 << 19
	maxDeletedBytes = 4 << 20
)

// encode takes ownership of obj. The stored bytes contain no resourceVersion.
func (r *Records) encode(key string, obj kind.Object) ([]byte, *Entry, error) {
	obj.SetResourceVersion("")
	normalize(obj)
	r.memo.intern(obj)
	value, err := r.Codec.Encode(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("write %s: %w", key, err)
	}
	most := maxObjectBytes
	if obj.GetDeletionTimestamp() != nil {
		most = maxDeletedBytes
	}
	if len(value) > most {
		return nil, nil, &sizeError{apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("request is too large: the object takes %d bytes in the store and may take %d", len(value),
				most))}
	}
	e := NewEntry(key, obj, 0, r.memo)
	e.sum = hash(value)
	e.size = len(value)
	return value, e, nil
}

// put writes value, and makes e available to the cache.
func (r *Records) put(value []byte, e *Entry, write func() (store.Written, error)) (store.Written, error) {
	r.handoff.offer(value, e)
	w, err := write()
	if err != nil {
		r.handoff.withdraw(value)
		return w, err
	}
	r.handoff.settle(value, e, w.Revision)
	return w, nil
}
