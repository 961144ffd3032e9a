// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"keelson/store"
)

// testConcurrentCounter has many writers increment one key by compare-and-swap: no increment may be lost.
func testConcurrentCounter(t *testing.T, st store.Store) {
	const writers, each = 16, 20
	create(t, st, "/n", "0")
	ctx := bounded(t)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if err := increment(func() (store.KV, error) {
					kv, _, err := st.Get(ctx, "/n", 0)
					return kv, err
				}, func(v []byte, at int64) error {
					_, err := st.Update(ctx, "/n", v, at)
					return err
				}); err != nil {
					t.Errorf("increment: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	got, _, err := st.Get(ctx, "/n", 0)
	if err != nil || string(got.Value) != strconv.Itoa(writers*each) {
		t.Errorf("counter: got %s, %v; want %d", got.Value, err, writers*each)
	}
}

// increment retries with the current value that a conflict brings along.
func increment(get func() (store.KV, error), put func([]byte, int64) error) error {
	cur, err := get()
	if err != nil {
		return err
	}
	for {
		n, err := strconv.Atoi(string(cur.Value))
		if err != nil {
			return err
		}
		err = put([]byte(strconv.Itoa(n+1)), cur.Revision)
		var c *store.ConflictError
		if !errors.As(err, &c) {
			return err
		}
		cur = c.Current
	}
}

// testConcurrentWatch has watchers on while many write: each sees every revision once, in order.
func testConcurrentWatch(t *testing.T, st store.Store) {
	const writers, each, watchers = 16, 50, 4
	start := revision(t, st)
	ctx := bounded(t)
	var wg sync.WaitGroup
	for range watchers {
		w := watch(t, st, "/", start)
		wg.Go(func() {
			next := start + 1
			for next <= start+writers*each {
				batch, ok := <-w.Events()
				if !ok {
					t.Errorf("watch ended at %d: %v", next, w.Err())
					return
				}
				for _, e := range batch {
					if e.KV.Revision != next {
						t.Errorf("watch: got revision %d, want %d", e.KV.Revision, next)
						return
					}
					next++
				}
			}
		})
	}
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				if _, err := st.Create(ctx, fmt.Sprintf("/%d/%d", i, j), []byte("v")); err != nil {
					t.Errorf("Create: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := revision(t, st); got != start+writers*each {
		t.Errorf("Revision: got %d, want %d", got, start+writers*each)
	}
}

// testReadYourWrite checks that an acknowledged write is in every later read.
func testReadYourWrite(t *testing.T, st store.Store) {
	ctx := bounded(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			prefix := fmt.Sprintf("/%d/", i)
			for j := range 30 {
				key := prefix + fmt.Sprintf("%03d", j)
				w, err := st.Create(ctx, key, []byte("v"))
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				if rev, err := st.Revision(ctx); err != nil || rev < w.Revision {
					t.Errorf("Revision after write %d: got %d, %v", w.Revision, rev, err)
				}
				if got, _, err := st.Get(ctx, key, 0); err != nil || got.Revision != w.Revision {
					t.Errorf("Get after write %d: got %d, %v", w.Revision, got.Revision, err)
				}
				if p, err := st.List(ctx, store.Range{Prefix: prefix}); err != nil || len(p.Items) != j+1 {
					t.Errorf("List after %d writes: got %d items, %v", j+1, len(p.Items), err)
				}
			}
		})
	}
	wg.Wait()
}
