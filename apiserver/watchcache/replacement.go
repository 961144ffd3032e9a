// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"maps"
	"strings"
	"time"

	"keelson/apiserver/objects"
	"keelson/store"
)

// replacement is a resource that is loaded while the cache runs. It receives events from its creation on, so that
// writes during the load are not lost.
type replacement struct {
	resource *Resource
	pending  []store.Event
}

// queueForReplacement queues ev for the replacement of its key's resource. feedMu is held.
func (c *Cache) queueForReplacement(ev *store.Event) {
	for prefix, h := range c.loading {
		rest, ok := strings.CutPrefix(ev.KV.Key, objects.Root)
		if rest, ok2 := strings.CutPrefix(rest, prefix); ok && ok2 && strings.HasPrefix(rest, "/") {
			h.pending = append(h.pending, *ev)
		}
	}
}

// Add adds a resource while the cache runs, and returns its storage when it is loaded. It replaces an earlier one with
// that prefix, which serves until then; its watches end and resume with the new one. There must be one call at a time
// per prefix.
func (c *Cache) Add(ctx context.Context, cfg objects.Config) (*Resource, error) {
	h := &replacement{resource: newResource(c, cfg)}
	defer func() {
		c.feedMu.Lock()
		defer c.feedMu.Unlock()
		delete(c.loading, cfg.Prefix)
	}()
	for {
		c.feedMu.Lock()
		c.loading[cfg.Prefix] = h
		h.pending = nil
		loads := c.loads
		c.feedMu.Unlock()
		t, rev, err := h.resource.loadTrees(ctx)
		if err != nil {
			return nil, err
		}
		if c.install(cfg.Prefix, h, t, rev, loads) {
			return h.resource, nil
		}
	}
}

// install replaces the resource with that prefix by h; false: the feed was interrupted meanwhile, load again.
func (c *Cache) install(prefix string, h *replacement, t *trees, rev int64, loads int) bool {
	c.feedMu.Lock()
	defer c.feedMu.Unlock()
	if c.loads != loads {
		return false
	}
	resource := h.resource
	resource.reset(t, rev)
	now := time.Now()
	for i := range h.pending {
		if h.pending[i].KV.Revision > rev {
			c.apply(resource, &h.pending[i], now)
		}
	}
	old := (*c.resources.Load())[prefix]
	c.replace(prefix, resource)
	if old != nil {
		old.retire(resource)
	}
	return true
}

// Remove stops serving a resource and ends its watches. It may have been replaced already.
func (c *Cache) Remove(prefix string, r *Resource) {
	c.feedMu.Lock()
	defer c.feedMu.Unlock()
	if (*c.resources.Load())[prefix] == r {
		c.replace(prefix, nil)
	}
	r.retire(r)
}

// replace modifies the map of resources; feedMu is held.
func (c *Cache) replace(prefix string, r *Resource) {
	resources := maps.Clone(*c.resources.Load())
	if r == nil {
		delete(resources, prefix)
	} else {
		resources[prefix] = r
	}
	c.resources.Store(&resources)
}

// retire ends r's watches; running reads continue with next.
func (r *Resource) retire(next *Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next.Store(next)
	r.watches.each(func(w *watcher) { w.terminate() })
}

// newest is r or its replacement.
func (r *Resource) newest() *Resource {
	for {
		next := r.next.Load()
		if next == nil || next == r {
			return r
		}
		r = next
	}
}
