// SPDX-License-Identifier: Apache-2.0

// Package watchcache holds the objects of every resource in memory, fed by one watch on the store, and serves reads and
// watches from there. The API server creates one Cache. Its handlers use each resource's objects.Storage:
// Cache.Resource for built-in resources, Cache.Add for custom resources (apiserver/crd). Writes pass through to the
// store. It never modifies an object that it holds, and knows nothing of HTTP.
//
// Invariants the code cites:
//
//  1. Cache.revision never runs ahead of the trees: at revision R every write up to R is applied.
//  2. A resource's tree, history window and watchers change together under its mu, so that a list and a watch that
//     starts at the list's revision miss nothing and repeat nothing.
//  3. A slow watcher costs a bounded queue and then its watch; never another watcher's time.
//
// The path of a write: feed.go receives it from the store's watch and decodes it; resource.go puts it into the trees
// (trees.go) and the history window; routes.go selects the watchers that it may concern; watch.go delivers it. load.go
// fills the trees at start, replacement.go fills those of a resource that is added later, and resume.go starts a watch
// at an older resourceVersion.
package watchcache

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/objects"
	"keelson/store"
)

// Config of New. Only Store is required.
type Config struct {
	Store store.Store
	Log   *slog.Logger
	// EncodedBytes limits the memory of cached encodings (default 16 MB).
	EncodedBytes int
	// BookmarkEvery is the minimum time between two rounds of bookmarks (default one minute).
	BookmarkEvery time.Duration
	// WaitTimeout is how long a request waits for a revision that the cache has not reached (default 3 s).
	WaitTimeout time.Duration
}

// Cache is the state of all resources at one revision of the store.
type Cache struct {
	store       store.Store
	log         *slog.Logger
	memo        *objects.Memo
	handoff     *objects.Handoff
	bookmark    time.Duration
	waitTimeout time.Duration

	// resources by their key prefix without Root, as in objects.Config. After Run has begun the map is replaced, never
	// modified.
	resources atomic.Pointer[map[string]*Resource]

	// feedMu is held while a batch of store events is applied; resources are added and removed between batches.
	feedMu  sync.Mutex
	loading map[string]*replacement // resources that are being loaded, by prefix
	loads   int                     // number of full loads

	revision atomic.Int64
	// reloading is since when the cache loads everything again; nil: it does not.
	reloading atomic.Pointer[time.Time]

	mu              sync.Mutex
	revisionChanged chan struct{} // closed and replaced when revision changes, if somebody waits
	waiting         int
	stopped         bool

	stop     chan struct{} // closed when Run ends: all watches end
	watchers sync.WaitGroup
}

// New returns a cache without resources; it reads nothing until Run.
func New(config Config) *Cache {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.EncodedBytes == 0 {
		config.EncodedBytes = 16 << 20
	}
	if config.BookmarkEvery == 0 {
		config.BookmarkEvery = time.Minute
	}
	if config.WaitTimeout == 0 {
		config.WaitTimeout = 3 * time.Second
	}
	cache := &Cache{
		store:           config.Store,
		log:             config.Log,
		bookmark:        config.BookmarkEvery,
		waitTimeout:     config.WaitTimeout,
		memo:            objects.NewMemo(config.EncodedBytes),
		handoff:         objects.NewHandoff(),
		loading:         map[string]*replacement{},
		revisionChanged: make(chan struct{}),
		stop:            make(chan struct{}),
	}
	cache.resources.Store(&map[string]*Resource{})
	return cache
}

// Resource adds a resource before Run and returns its storage (use Add later). A second call with the same prefix
// returns the first one.
func (c *Cache) Resource(cfg objects.Config) *Resource {
	resources := *c.resources.Load()
	if r, ok := resources[cfg.Prefix]; ok {
		return r
	}
	r := newResource(c, cfg)
	resources[cfg.Prefix] = r
	return r
}

// Revision is the store revision that the cache has reached; 0 before it is loaded.
func (c *Cache) Revision() int64 { return c.revision.Load() }

// Run loads everything, calls ready and follows the store until ctx ends. Reads and watches wait until it is loaded.
// When the cache has fallen behind the store it is loaded again; lists and watches that begin meanwhile are refused.
func (c *Cache) Run(ctx context.Context, ready func()) error {
	defer c.stopWatches()
	for {
		at, err := c.load(ctx)
		if err == nil {
			c.reloading.Store(nil)
			ready()
			err = c.follow(ctx, at)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, store.ErrSlow), errors.Is(err, store.ErrCompacted):
			c.reloading.CompareAndSwap(nil, new(time.Now()))
			c.log.Warn("watch cache fell behind the store, reload", "rev", c.Revision(), "err", err)
		default:
			return err
		}
	}
}

// refuse returns 429 while the cache is loaded again: lists and watches would wait for it, and a server that has just
// fallen behind would collect them. As in Kubernetes (KEP-4568), Retry-After grows with the time it takes. Before the
// first load no one is refused: only the server's own parts ask then, and they wait.
func (c *Cache) refuse() error {
	since := c.reloading.Load()
	if since == nil {
		return nil
	}
	const growth, most = 0.06, 30
	after := math.Min(most, math.Max(1, math.Exp(growth*time.Since(*since).Seconds())))
	return apierrors.NewTooManyRequests("storage is (re)initializing", int(after))
}

// addWatch counts a watch that is about to run; end waits for its watchers.Done.
func (c *Cache) addWatch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errStopped()
	}
	c.watchers.Add(1)
	return nil
}

// stopWatches ends all watches and waits for them.
func (c *Cache) stopWatches() {
	c.mu.Lock()
	c.stopped = true
	close(c.stop)
	c.mu.Unlock()
	c.watchers.Wait()
}

// advance records that every write up to rev is applied.
func (c *Cache) advance(rev int64) {
	c.revision.Store(rev)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting > 0 {
		close(c.revisionChanged)
		c.revisionChanged = make(chan struct{})
		c.waiting = 0
	}
}

// wait returns when the cache has reached rev, or ctx ends.
func (c *Cache) wait(ctx context.Context, rev int64) error {
	for c.revision.Load() < rev {
		c.mu.Lock()
		if c.revision.Load() >= rev {
			c.mu.Unlock()
			return nil
		}
		tick := c.revisionChanged
		c.waiting++
		c.mu.Unlock()
		select {
		case <-tick:
		case <-c.stop:
			return errStopped()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// waitLatest waits until every write acknowledged before the call is applied.
func (c *Cache) waitLatest(ctx context.Context) error {
	rev, err := c.store.Revision(ctx)
	if errors.Is(err, store.ErrClosed) {
		return errStopped()
	}
	if err != nil {
		return err
	}
	return c.wait(ctx, rev)
}

// waitRevision waits for rev, at most for waitTimeout.
func (c *Cache) waitRevision(ctx context.Context, rev int64) error {
	if c.revision.Load() >= max(rev, 1) {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, c.waitTimeout)
	defer cancel()
	err := c.wait(short, max(rev, 1))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return objects.TooLarge(rev, c.Revision())
	}
	return err
}
