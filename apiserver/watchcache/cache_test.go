// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"sync"
	"testing"

	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/watchcache"
	"keelson/store"
)

func run(t testing.TB, c *watchcache.Cache) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ready := make(chan struct{})
	// ends with ctx, which the cleanup cancels
	go func() { done <- c.Run(ctx, sync.OnceFunc(func() { close(ready) })) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func open(t *testing.T, cfg objects.Config, s store.Store) objects.Storage {
	t.Helper()
	c := watchcache.New(watchcache.Config{Store: s})
	r := c.Resource(cfg)
	run(t, c)
	return r
}

func TestRecords(t *testing.T) {
	objectstest.RunRecords(t, func(t *testing.T, c objects.Config, s store.Store) objectstest.Records {
		return open(t, c, s)
	})
}

func TestWatch(t *testing.T) {
	objectstest.RunWatch(t, open)
	objectstest.RunShared(t, open)
}
