// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"keelson/apiserver/objects"
	"keelson/apiserver/objects/objectstest"
	"keelson/apiserver/watchcache"
	"keelson/lib/waittest"
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

// packed is open for objects that are kept compressed.
func packed(t *testing.T, cfg objects.Config, s store.Store) objects.Storage {
	t.Helper()
	cfg.Packed = true
	return open(t, cfg, s)
}

func TestRecords(t *testing.T) {
	for name, open := range map[string]func(*testing.T, objects.Config, store.Store) objects.Storage{
		"as objects": open,
		"packed":     packed,
	} {
		t.Run(name, func(t *testing.T) {
			objectstest.RunRecords(t, func(t *testing.T, c objects.Config, s store.Store) objectstest.Records {
				return open(t, c, s)
			})
		})
	}
}

func TestWatch(t *testing.T) {
	objectstest.RunWatch(t, open)
	objectstest.RunShared(t, open)
}

func TestWatchPacked(t *testing.T) {
	objectstest.RunWatch(t, packed)
	objectstest.RunShared(t, packed)
}

// TestPackedIsForgotten: objects that no one reads are not in memory, neither those that this server wrote nor those
// that it loaded, nor earlier states in the window; readers at one time share one decoded object.
func TestPackedIsForgotten(t *testing.T) {
	const count = 100
	var forgotten atomic.Int32
	watched := func(e *objects.Entry) {
		runtime.AddCleanup(e, func(int) { forgotten.Add(1) }, 0)
	}
	st := objectstest.NewStore(t)
	written := packed(t, objectstest.Pods(), st)
	for i := range count {
		e, _, err := written.Create(t.Context(), objectstest.Pod(fmt.Sprintf("default/p%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		watched(e)
	}
	for name, storage := range map[string]objects.Storage{
		"written": written,
		"loaded":  packed(t, objectstest.Pods(), st),
	} {
		list, err := storage.List(t.Context(), objectstest.Everything())
		if err != nil || len(list.Items) != count {
			t.Fatalf("%s: %d objects, %v", name, len(list.Items), err)
		}
		got, err := storage.Get(t.Context(), "default", list.Items[0].Object.GetName(), "0")
		if err != nil || got != list.Items[0] {
			t.Errorf("%s: two readers at one time have two objects, %v", name, err)
		}
		if name == "loaded" {
			for _, e := range list.Items {
				watched(e)
			}
		}
		runtime.KeepAlive(list)
	}
	waittest.Until(t, "objects that no one reads are forgotten", func() bool {
		runtime.GC()
		return forgotten.Load() == 2*count
	})
}
