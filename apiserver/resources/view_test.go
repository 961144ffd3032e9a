// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"sync"
	"testing"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/resources"
	"keelson/apiserver/watchcache"
	"keelson/store"
)

// openView is the storage of a view that shows every object as it is, in a copy.
func openView(t *testing.T, cfg objects.Config, s store.Store) objects.Storage {
	t.Helper()
	c := watchcache.New(watchcache.Config{Store: s})
	same := func(obj kind.Object) kind.Object { return obj.DeepCopyObject().(kind.Object) }
	view := resources.Viewed(c.Resource(cfg), &resources.View{Of: cfg.Resource, ToServed: same, ToStored: same})
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
	return view
}

// TestView: a view can do what the storage behind it can.
func TestView(t *testing.T) {
	objectstest.RunRecords(t, func(t *testing.T, c objects.Config, s store.Store) objectstest.Records {
		return openView(t, c, s)
	})
	objectstest.RunWatch(t, openView)
}
