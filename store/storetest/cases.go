// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"keelson/store"
)

func testWrites(t *testing.T, st store.Store) {
	before := revision(t, st)
	if before <= 0 {
		t.Errorf("Revision of an empty store: got %d, want above 0", before)
	}
	r1 := create(t, st, "/a/x", "one")
	r2 := create(t, st, "/a/y", "two")
	r3 := update(t, st, "/a/x", "three", r1)
	old, written, err := st.Delete(bounded(t), "/a/y", r2)
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	for i, got := range []int64{r1, r2, r3, written.Revision} {
		if want := before + int64(i) + 1; got != want {
			t.Errorf("write %d: got revision %d, want %d", i, got, want)
		}
	}
	if string(old.Value) != "two" || old.Revision != r2 {
		t.Errorf("Delete returned %s@%d, want two@%d", old.Value, old.Revision, r2)
	}
	got, rev, err := st.Get(bounded(t), "/a/x", 0)
	if err != nil || string(got.Value) != "three" || got.Revision != r3 || got.Key != "/a/x" ||
		rev != written.Revision {
		t.Errorf("Get: got %+v at %d, %v; want three@%d at %d", got, rev, err, r3, written.Revision)
	}
	_, rev, err = st.Get(bounded(t), "/a/y", 0)
	wantErr(t, "Get of a deleted key", err, store.ErrNotFound)
	if rev != written.Revision {
		t.Errorf("Get of a deleted key: got store revision %d, want %d", rev, written.Revision)
	}
	if again := create(t, st, "/a/y", "four"); again != written.Revision+1 {
		t.Errorf("Create after Delete: got revision %d, want %d", again, written.Revision+1)
	}
	if got := revision(t, st); got != written.Revision+1 {
		t.Errorf("Revision: got %d, want %d", got, written.Revision+1)
	}
	if size, err := st.Size(bounded(t)); err != nil || size <= 0 {
		t.Errorf("Size: got %d, %v", size, err)
	}
	empty := create(t, st, "/a/empty", "")
	got, _, err = st.Get(bounded(t), "/a/empty", 0)
	if err != nil || len(got.Value) != 0 || got.Revision != empty {
		t.Errorf("Get of an empty value: got %+v, %v", got, err)
	}
}

func testRefusals(t *testing.T, st store.Store) {
	r1 := create(t, st, "/k", "v")
	r2 := update(t, st, "/k", "w", r1)
	_, err := st.Create(bounded(t), "/k", []byte("x"))
	wantErr(t, "Create of an existing key", err, store.ErrExists)
	_, err = st.Update(bounded(t), "/none", nil, 1)
	wantErr(t, "Update of a missing key", err, store.ErrNotFound)
	_, _, err = st.Delete(bounded(t), "/none", 0)
	wantErr(t, "Delete of a missing key", err, store.ErrNotFound)
	_, uerr := st.Update(bounded(t), "/k", []byte("x"), r1)
	_, _, derr := st.Delete(bounded(t), "/k", r1)
	for what, err := range map[string]error{"Update": uerr, "Delete": derr} {
		var c *store.ConflictError
		if !errors.As(err, &c) {
			t.Errorf("%s at an old revision: got %v, want *ConflictError", what, err)
			continue
		}
		if c.Expected != r1 || c.Current.Revision != r2 || string(c.Current.Value) != "w" || c.Current.Key != "/k" {
			t.Errorf("%s: got conflict %+v, want expected %d, current w@%d", what, c, r1, r2)
		}
	}
	if got := revision(t, st); got != r2 {
		t.Errorf("refused writes moved the revision to %d, want %d", got, r2)
	}
	remove(t, st, "/k", 0)
	_, err = st.Update(bounded(t), "/k", nil, r2)
	wantErr(t, "Update of a deleted key", err, store.ErrNotFound)
}

func testReadAtRevision(t *testing.T, st store.Store) {
	r1 := create(t, st, "/p/a", "1")
	r2 := create(t, st, "/p/b", "2")
	r3 := update(t, st, "/p/a", "3", r1)
	r4 := remove(t, st, "/p/b", 0)
	r5 := create(t, st, "/p/b", "5")
	tests := []struct {
		rev  int64
		want []store.KV
	}{
		{r1, []store.KV{kv("/p/a", "1", r1)}},
		{r2, []store.KV{kv("/p/a", "1", r1), kv("/p/b", "2", r2)}},
		{r3, []store.KV{again(kv("/p/a", "1", r1), "3", r3), kv("/p/b", "2", r2)}},
		{r4, []store.KV{again(kv("/p/a", "1", r1), "3", r3)}},
		{r5, []store.KV{again(kv("/p/a", "1", r1), "3", r3), kv("/p/b", "5", r5)}},
	}
	for _, tc := range tests {
		p := list(t, st, store.Range{Prefix: "/p/", Revision: tc.rev})
		wantItems(t, fmt.Sprintf("List at %d", tc.rev), p.Items, tc.want...)
		if p.Revision != tc.rev || p.More {
			t.Errorf("List at %d: got revision %d, more %v", tc.rev, p.Revision, p.More)
		}
		for _, want := range tc.want {
			got, at, err := st.Get(bounded(t), want.Key, tc.rev)
			if err != nil || show([]store.KV{got}) != show([]store.KV{want}) || at != r5 {
				t.Errorf("Get(%s, %d): got %v at %d, %v; want %v at %d", want.Key, tc.rev, got, at, err, want, r5)
			}
		}
	}
	_, _, err := st.Get(bounded(t), "/p/b", r4)
	wantErr(t, "Get at the deletion", err, store.ErrNotFound)
	_, _, err = st.Get(bounded(t), "/p/a", r5+1)
	wantErr(t, "Get in the future", err, store.ErrFuture)
	_, err = st.List(bounded(t), store.Range{Prefix: "/p/", Revision: r5 + 1})
	wantErr(t, "List in the future", err, store.ErrFuture)
}

func testListPages(t *testing.T, st store.Store) {
	var want []store.KV
	for i := range 25 {
		key := fmt.Sprintf("/pods/%02d", i)
		want = append(want, kv(key, key, create(t, st, key, key)))
	}
	at := revision(t, st)
	for _, limit := range []int{1, 7, 24, 25, 26} {
		rng := store.Range{Prefix: "/pods/", Limit: limit, Revision: at}
		var got []store.KV
		for {
			page := list(t, st, rng)
			got = append(got, page.Items...)
			left := int64(len(want) - len(got))
			rng.NoCount = true
			uncounted := list(t, st, rng)
			rng.NoCount = false
			wantItems(t, fmt.Sprintf("page of %d, not counted", limit), uncounted.Items, page.Items...)
			if uncounted.More != page.More || uncounted.More != (uncounted.Remaining > 0) {
				t.Fatalf("List limit %d, not counted: more %v, remaining %d; want more %v", limit, uncounted.More,
					uncounted.Remaining, page.More)
			}
			if page.More != (left > 0) || page.Remaining != left || len(page.Items) > limit {
				t.Fatalf("List limit %d: got %d items, more %v, remaining %d; want remaining %d", limit,
					len(page.Items),
					page.More, page.Remaining, left)
			}
			if !page.More {
				break
			}
			rng.From = page.Items[len(page.Items)-1].Key + "\x00"
			// What happens between pages is not seen by a read at the first page's revision.
			create(t, st, fmt.Sprintf("/pods/zz%d-%d", limit, len(got)), "late")
		}
		wantItems(t, fmt.Sprintf("pages of %d", limit), got, want...)
	}
}

func testListBounds(t *testing.T, st store.Store) {
	for _, key := range []string{"/a", "/a/", "/a/b", "/a/b/c", "/a/\xff", "/a/\xff\xff", "/a0", "/b", "\xff\xff"} {
		create(t, st, key, "v")
	}
	tests := []struct {
		prefix, from string
		want         []string
	}{
		{"/a/", "", []string{"/a/", "/a/b", "/a/b/c", "/a/\xff", "/a/\xff\xff"}},
		{"/a", "", []string{"/a", "/a/", "/a/b", "/a/b/c", "/a/\xff", "/a/\xff\xff", "/a0"}},
		{"/a/", "/a/b\x00", []string{"/a/b/c", "/a/\xff", "/a/\xff\xff"}},
		{"/a/", "/0", []string{"/a/", "/a/b", "/a/b/c", "/a/\xff", "/a/\xff\xff"}},
		{"/a/", "/b", nil},
		{"\xff", "", []string{"\xff\xff"}},
		{"/none", "", nil},
	}
	for _, tc := range tests {
		p := list(t, st, store.Range{Prefix: tc.prefix, From: tc.from})
		var got []string
		for _, kv := range p.Items {
			got = append(got, kv.Key)
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", tc.want) {
			t.Errorf("List(%q from %q): got %q, want %q", tc.prefix, tc.from, got, tc.want)
		}
	}
	if got := list(t, st, store.Range{}); len(got.Items) == 0 || got.Remaining != 0 {
		t.Errorf("List of an empty prefix: got %d items and %d more, want all keys", len(got.Items), got.Remaining)
	}
}

// testManyVersions has one key with a long history between others.
func testManyVersions(t *testing.T, st store.Store) {
	a := create(t, st, "/v/a", "a")
	first := create(t, st, "/v/hot", "0")
	z := create(t, st, "/v/z", "z")
	rev := first
	for i := range 50 {
		rev = update(t, st, "/v/hot", fmt.Sprint(i+1), rev)
	}
	wantItems(t, "latest", list(t, st, store.Range{Prefix: "/v/"}).Items, kv("/v/a", "a", a),
		store.KV{
			Key:      "/v/hot",
			Value:    []byte("50"),
			Revision: rev,
			Created:  first,
			Version:  51,
		}, kv("/v/z", "z", z))
	wantItems(t, "oldest", list(t, st, store.Range{Prefix: "/v/", Revision: z}).Items,
		kv("/v/a", "a", a), kv("/v/hot", "0", first), kv("/v/z", "z", z))
	p := list(t, st, store.Range{Prefix: "/v/", Limit: 1})
	if p.Remaining != 2 {
		t.Errorf("Remaining: got %d, want 2", p.Remaining)
	}
}

func testCompact(t *testing.T, st store.Store) {
	r1 := create(t, st, "/a", "1")
	gone := create(t, st, "/gone", "g")
	r2 := update(t, st, "/a", "2", r1)
	del := remove(t, st, "/gone", 0)
	r3 := update(t, st, "/a", "3", r2)
	wantErr(t, "Compact in the future", st.Compact(bounded(t), r3+1), store.ErrFuture)
	if err := st.Compact(bounded(t), del); err != nil {
		t.Fatalf("Compact(%d): %v", del, err)
	}
	if err := st.Compact(bounded(t), r1); err != nil {
		t.Errorf("Compact to an older revision: got %v, want nil", err)
	}
	for _, rev := range []int64{r1, gone, r2} {
		_, _, err := st.Get(bounded(t), "/a", rev)
		wantErr(t, fmt.Sprintf("Get at %d", rev), err, store.ErrCompacted)
		_, err = st.List(bounded(t), store.Range{Prefix: "/", Revision: rev})
		wantErr(t, fmt.Sprintf("List at %d", rev), err, store.ErrCompacted)
	}
	wantItems(t, "List at the compacted revision", list(t, st, store.Range{Prefix: "/", Revision: del}).Items,
		again(kv("/a", "1", r1), "2", r2))
	wantItems(t, "List after Compact", list(t, st, store.Range{Prefix: "/"}).Items,
		again(again(kv("/a", "1", r1), "2", r2), "3", r3))
	if err := st.Compact(bounded(t), r3); err != nil {
		t.Fatalf("Compact(%d): %v", r3, err)
	}
	if got := revision(t, st); got != r3 {
		t.Errorf("Revision after Compact: got %d, want %d", got, r3)
	}
	create(t, st, "/gone", "again")
	update(t, st, "/a", "4", r3)
}

func testContextEnded(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, "/a", nil)
	wantErr(t, "Create", err, context.Canceled)
	_, _, err = s.Get(ctx, "/a", 0)
	wantErr(t, "Get", err, context.Canceled)
	_, err = s.List(ctx, store.Range{Prefix: "/"})
	wantErr(t, "List", err, context.Canceled)
}

func testClosed(t *testing.T, st store.Store) {
	create(t, st, "/a", "1")
	w, err := st.Watch(t.Context(), "/", 0)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	for range w.Events() {
		t.Error("event after Close")
	}
	wantErr(t, "watch on a closed store", w.Err(), store.ErrClosed)
	if err := st.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	_, err = st.Create(bounded(t), "/b", nil)
	wantErr(t, "Create", err, store.ErrClosed)
	_, _, err = st.Get(bounded(t), "/a", 0)
	wantErr(t, "Get", err, store.ErrClosed)
	_, err = st.List(bounded(t), store.Range{Prefix: "/"})
	wantErr(t, "List", err, store.ErrClosed)
	_, err = st.Watch(bounded(t), "/", 0)
	wantErr(t, "Watch", err, store.ErrClosed)
	_, err = st.Revision(bounded(t))
	wantErr(t, "Revision", err, store.ErrClosed)
	wantErr(t, "Compact", st.Compact(bounded(t), 1), store.ErrClosed)
}
