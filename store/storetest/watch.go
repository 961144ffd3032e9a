// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"keelson/store"
)

func watch(t *testing.T, s store.Store, prefix string, from int64) store.Watcher {
	t.Helper()
	w, err := s.Watch(bounded(t), prefix, from)
	if err != nil {
		t.Fatalf("Watch(%s, %d): %v", prefix, from, err)
	}
	t.Cleanup(w.Stop)
	return w
}

// take reads n events.
func take(t *testing.T, w store.Watcher, n int) []store.Event {
	t.Helper()
	var got []store.Event
	for len(got) < n {
		batch, ok := <-w.Events()
		if !ok {
			t.Fatalf("watch ended after %d of %d events: %v", len(got), n, w.Err())
		}
		if len(batch) == 0 {
			t.Fatal("watch delivered an empty batch")
		}
		got = append(got, batch...)
	}
	if len(got) > n {
		t.Fatalf("watch delivered %d events, want %d: %s", len(got), n, showEvents(got))
	}
	return got
}

func showEvents(events []store.Event) string {
	var s strings.Builder
	for _, e := range events {
		s.WriteString(showEvent(e) + " ")
	}
	return s.String()
}

// showWritten is the keys of events as show has them.
func showWritten(events []store.Event) string {
	var items []store.KV
	for _, e := range events {
		items = append(items, e.KV)
	}
	return show(items)
}

func showEvent(e store.Event) string {
	return fmt.Sprintf("%s:%s=%s@%d(%s)", [...]string{"?", "C", "U", "D"}[e.Type], e.KV.Key, e.KV.Value, e.KV.Revision,
		e.Prev)
}

func testWatchNow(t *testing.T, s store.Store) {
	create(t, s, "/a/old", "x")
	w := watch(t, s, "/a/", 0)
	create(t, s, "/b/other", "x")
	rev := create(t, s, "/a/new", "y")
	got := take(t, w, 1)
	if want := fmt.Sprintf("C:/a/new=y@%d()", rev); showEvent(got[0]) != want {
		t.Errorf("got %s, want %s", showEvent(got[0]), want)
	}
}

func testWatchHistory(t *testing.T, s store.Store) {
	before := revision(t, s)
	var want []string
	for i := range 1200 { // more than an implementation keeps in one batch
		key := fmt.Sprintf("/w/%d", i)
		want = append(want, fmt.Sprintf("C:%s=v@%d()", key, create(t, s, key, "v")))
	}
	for _, start := range []int{0, 1, 600, 1199} {
		w := watch(t, s, "/w/", before+int64(start))
		got := take(t, w, len(want)-start)
		for i := range got {
			if showEvent(got[i]) != want[start+i] {
				t.Fatalf("watch from %d, event %d: got %s, want %s", start, i, showEvent(got[i]), want[start+i])
			}
		}
		w.Stop()
	}
}

func testWatchEventShape(t *testing.T, s store.Store) {
	before := revision(t, s)
	r1 := create(t, s, "/k", "1")
	r2 := update(t, s, "/k", "2", r1)
	r3 := remove(t, s, "/k", r2)
	r4 := create(t, s, "/k", "4")
	want := fmt.Sprintf("C:/k=1@%d() U:/k=2@%d(1) D:/k=2@%d(2) C:/k=4@%d() ", r1, r2, r3, r4)
	if got := showEvents(take(t, watch(t, s, "/", before), 4)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func testWatchEnds(t *testing.T, st store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	byCtx, err := st.Watch(ctx, "/", 0)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	byStop := watch(t, st, "/", 0)
	other := watch(t, st, "/", 0)
	cancel()
	byStop.Stop()
	byStop.Stop()
	for what, w := range map[string]store.Watcher{"context": byCtx, "Stop": byStop} {
		for range w.Events() {
			t.Errorf("%s: event on an ended watch", what)
		}
		if err := w.Err(); err != nil {
			t.Errorf("%s: got error %v, want nil", what, err)
		}
	}
	create(t, st, "/a", "1")
	take(t, other, 1)
}

// testWatchSlowReader writes much while no one reads: the watch must neither hold up writers nor lose anything.
func testWatchSlowReader(t *testing.T, s store.Store) {
	w := watch(t, s, "/", 0)
	rev := create(t, s, "/k", "0")
	const n = 6000
	for i := range n {
		rev = update(t, s, "/k", fmt.Sprint(i), rev)
	}
	next := rev - n
	for next <= rev {
		batch, ok := <-w.Events()
		if !ok {
			wantErr(t, "slow watch", w.Err(), store.ErrSlow)
			return
		}
		for _, e := range batch {
			if e.KV.Revision != next {
				t.Fatalf("got revision %d, want %d", e.KV.Revision, next)
			}
			next++
		}
	}
}

func testWatchCompacted(t *testing.T, st store.Store) {
	r1 := create(t, st, "/a", "1")
	r2 := update(t, st, "/a", "2", r1)
	r3 := update(t, st, "/a", "3", r2)
	if err := st.Compact(bounded(t), r2); err != nil {
		t.Fatalf("Compact: %v", err)
	}
	w, err := st.Watch(bounded(t), "/", r1)
	if err == nil { // a remote store learns it only from the running watch
		for range w.Events() {
			t.Error("event before the compacted revision")
		}
		err = w.Err()
	}
	wantErr(t, "Watch from before the compacted revision", err, store.ErrCompacted)
	want := fmt.Sprintf("U:/a=3@%d(2)", r3)
	if got := take(t, watch(t, st, "/", r2), 1); showEvent(got[0]) != want {
		t.Errorf("Watch from the compacted revision: got %s, want %s", showEvent(got[0]), want)
	}
	future := watch(t, st, "/", r3+1)
	create(t, st, "/skipped", "")
	r5 := create(t, st, "/seen", "")
	if got := take(t, future, 1); got[0].KV.Revision != r5 {
		t.Errorf("Watch from a future revision: got %d first, want %d", got[0].KV.Revision, r5)
	}
}
