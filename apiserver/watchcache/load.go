// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"keelson/apiserver/objects"
	"keelson/store"
)

// loadChunk is the number of keys per store read during a load.
const loadChunk = 2000

// load reads everything at one revision and replaces the old state; running watches end.
func (c *Cache) load(ctx context.Context) (int64, error) {
	for {
		resources := c.resources.Load()
		fresh := map[*Resource]*trees{}
		rev, err := c.readAll(ctx, objects.Root, c.route, fresh)
		if err != nil {
			return 0, fmt.Errorf("load watch cache: %w", err)
		}
		if c.refill(resources, fresh, rev) {
			return rev, nil
		}
	}
}

// refill gives every resource its objects; false: a resource was added or removed since reading began.
func (c *Cache) refill(resources *map[string]*Resource, fresh map[*Resource]*trees, rev int64) bool {
	c.feedMu.Lock()
	defer c.feedMu.Unlock()
	if c.resources.Load() != resources {
		return false
	}
	c.loads++
	for _, res := range *resources {
		res.reset(fresh[res], rev)
	}
	c.advance(rev)
	return true
}

// loadTrees reads the resource's objects from the store; nil: none.
func (r *Resource) loadTrees(ctx context.Context) (*trees, int64, error) {
	fresh := map[*Resource]*trees{}
	rev, err := r.cache.readAll(ctx, r.records.KeyPrefix(""), func(string) *Resource { return r }, fresh)
	if err != nil {
		return nil, 0, fmt.Errorf("load %s: %w", r.records.Resource, err)
	}
	return fresh[r], rev, nil
}

// readAll reads all objects under prefix at one revision into fresh. It decodes a page on all CPUs while it reads the
// next.
func (c *Cache) readAll(
	ctx context.Context, prefix string, route func(key string) *Resource, fresh map[*Resource]*trees,
) (int64, error) {
	pages := make(chan []store.KV, 1)
	var rev int64
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		defer close(pages)
		rev, err = readPages(ctx, c.store, prefix, pages)
		return err
	})
	for page := range pages {
		for _, l := range c.decodeAll(page, route) {
			switch {
			case l.err != nil:
				treesOf(fresh, l.resource).setDecodeError(l.key, l.rev, l.err)
			case !l.kept.None():
				treesOf(fresh, l.resource).replace(item{}, l.kept)
			}
		}
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return rev, nil
}

// readPages sends the keys under prefix at one revision, which it returns.
func readPages(ctx context.Context, from store.Reader, prefix string, pages chan<- []store.KV) (int64, error) {
	r := store.Range{Prefix: prefix, Limit: loadChunk, NoCount: true}
	for {
		page, err := from.List(ctx, r)
		if err != nil {
			return 0, err
		}
		if page.More {
			r.Revision = page.Revision
			r.From = page.Items[len(page.Items)-1].Key + "\x00"
		}
		select {
		case pages <- page.Items:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if !page.More {
			return page.Revision, nil
		}
	}
}

func treesOf(fresh map[*Resource]*trees, r *Resource) *trees {
	t := fresh[r]
	if t == nil {
		t = newTrees(r.records.Index)
		fresh[r] = t
	}
	return t
}

// loaded is the decoded object of a key; resource is nil for an unknown resource, err is the decoding error.
type loaded struct {
	resource *Resource
	key      string
	rev      int64
	kept     objects.Kept
	err      error
}

// decodeAll decodes a page in order.
func (c *Cache) decodeAll(page []store.KV, route func(key string) *Resource) []loaded {
	out := make([]loaded, len(page))
	part := max(1, (len(page)+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for from := 0; from < len(page); from += part {
		wg.Go(func() {
			for i := from; i < min(from+part, len(page)); i++ {
				out[i] = c.decodeOne(page[i], route(page[i].Key))
			}
		})
	}
	wg.Wait()
	return out
}

func (c *Cache) decodeOne(kv store.KV, r *Resource) loaded {
	if r == nil {
		return loaded{}
	}
	e, err := r.records.Decoded(kv, c.memo)
	if err != nil {
		c.log.Error("stored object cannot be decoded, skipped", "key", kv.Key, "rev", kv.Revision, "err", err)
	}
	return loaded{r, kv.Key, kv.Revision, r.records.Keep(e, kv.Value), err}
}
