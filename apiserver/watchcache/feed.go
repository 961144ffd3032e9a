// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"fmt"
	"strings"
	"time"

	"keelson/apiserver/objects"
	"keelson/store"
)

// route returns the resource of a key. A prefix has one or two segments ("services/specs").
func (c *Cache) route(key string) *Resource {
	rest, ok := strings.CutPrefix(key, objects.Root)
	if !ok {
		return nil
	}
	one := strings.IndexByte(rest, '/')
	if one < 0 {
		return nil
	}
	resources := *c.resources.Load()
	if two := strings.IndexByte(rest[one+1:], '/'); two >= 0 {
		if r := resources[rest[:one+1+two]]; r != nil {
			return r
		}
	}
	return resources[rest[:one]]
}

// follow applies the store's writes after rev until the watch ends.
func (c *Cache) follow(ctx context.Context, rev int64) error {
	watcher, err := c.store.Watch(ctx, "", rev)
	if err != nil {
		return fmt.Errorf("watch store: %w", err)
	}
	defer watcher.Stop()
	marked := time.Now()
	for batch := range watcher.Events() {
		now := time.Now()
		c.applyAll(batch, now)
		if now.Sub(marked) >= c.bookmark {
			marked = now
			for _, r := range *c.resources.Load() {
				r.bookmarkAll()
			}
		}
	}
	return watcher.Err()
}

// applyAll applies a batch and advances the cache's revision.
func (c *Cache) applyAll(batch []store.Event, now time.Time) {
	c.feedMu.Lock()
	defer c.feedMu.Unlock()
	for i := range batch {
		if len(c.loading) > 0 {
			c.queueForReplacement(&batch[i])
		}
		if r := c.route(batch[i].KV.Key); r != nil {
			c.apply(r, &batch[i], now)
		}
	}
	c.advance(batch[len(batch)-1].KV.Revision)
}

func (c *Cache) apply(resource *Resource, ev *store.Event, now time.Time) {
	ch := &change{rev: ev.KV.Revision, key: ev.KV.Key, at: now}
	if ev.Type != store.Deleted {
		e := c.handoff.Take(ev.KV.Value, ev.KV.Revision)
		if e == nil {
			if e, ch.err = resource.records.Decoded(ev.KV, c.memo); ch.err != nil {
				c.log.Error("stored object cannot be decoded, skipped", "key", ev.KV.Key, "rev", ev.KV.Revision, "err",
					ch.err)
			}
		}
		ch.cur = resource.records.Keep(e, ev.KV.Value)
	}
	resource.apply(ch)
}
