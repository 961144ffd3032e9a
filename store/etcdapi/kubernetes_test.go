// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keelson/store/embed"
)

// TestKubernetesStorage does what the storage of a stock Kubernetes API server does with etcd, through the client that
// it uses.
func TestKubernetesStorage(t *testing.T) {
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{serve(t)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ctx := t.Context()
	const key = "/registry/pods/default/a"
	watched := client.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithPrevKV(),
		clientv3.WithProgressNotify())

	created, err := client.Kubernetes.OptimisticPut(ctx, key, []byte("1"), 0, kubernetes.PutOptions{})
	if err != nil || !created.Succeeded {
		t.Fatalf("create: %+v, %v", created, err)
	}
	again, err := client.Kubernetes.OptimisticPut(ctx, key, []byte("2"), 0, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || again.Succeeded || string(again.KV.Value) != "1" || again.KV.ModRevision != created.Revision {
		t.Errorf("create again: %+v, %v; want what is there", again, err)
	}
	lease, err := client.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	updated, err := client.Kubernetes.OptimisticPut(ctx, key, []byte("2"), created.Revision, kubernetes.PutOptions{
		GetOnFailure: true,
		LeaseID:      lease.ID,
	})
	if err != nil || !updated.Succeeded || updated.Revision <= created.Revision {
		t.Errorf("update: %+v, %v", updated, err)
	}
	stale, err := client.Kubernetes.OptimisticDelete(ctx, key, created.Revision, kubernetes.DeleteOptions{
		GetOnFailure: true,
	})
	if err != nil || stale.Succeeded || stale.KV.ModRevision != updated.Revision {
		t.Errorf("delete of an old version: %+v, %v; want what is there", stale, err)
	}
	got, err := client.Kubernetes.Get(ctx, key, kubernetes.GetOptions{})
	if err != nil || string(got.KV.Value) != "2" || got.KV.ModRevision != updated.Revision {
		t.Errorf("get: %+v, %v", got, err)
	}
	for i := range 5 {
		if _, err := client.Kubernetes.OptimisticPut(ctx, fmt.Sprintf("/registry/pods/default/b%d", i), nil, 0,
			kubernetes.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := client.Kubernetes.List(ctx, "/registry/pods/", kubernetes.ListOptions{Limit: 2})
	if err != nil || len(page.Kvs) != 2 || page.Count != 6 {
		t.Errorf("list: %d of %d, %v", len(page.Kvs), page.Count, err)
	}
	rest, err := client.Kubernetes.List(ctx, "/registry/pods/", kubernetes.ListOptions{
		Revision: page.Revision,
		Continue: string(page.Kvs[1].Key) + "\x00",
	})
	if err != nil || len(rest.Kvs) != 4 {
		t.Errorf("the rest of the list: %d, %v; want 4", len(rest.Kvs), err)
	}
	deleted, err := client.Kubernetes.OptimisticDelete(ctx, key, updated.Revision, kubernetes.DeleteOptions{})
	if err != nil || !deleted.Succeeded {
		t.Errorf("delete: %+v, %v", deleted, err)
	}
	if n, err := client.Kubernetes.Count(ctx, "/registry/pods/", kubernetes.CountOptions{}); err != nil || n != 5 {
		t.Errorf("count: %d, %v; want 5", n, err)
	}
	var events []string
	for len(events) < 8 {
		r := <-watched
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		for _, e := range r.Events {
			if !e.IsCreate() && e.PrevKv == nil {
				t.Errorf("event %v of %s has no value before", e.Type, e.Kv.Key)
			}
			events = append(events, fmt.Sprint(e.Type, e.IsCreate(), e.IsModify()))
		}
	}
	if got := strings.Join(events, " "); !strings.HasPrefix(got, "PUT true false PUT false true PUT true false") ||
		!strings.HasSuffix(got, "DELETE false false") {
		t.Errorf("watch: got %s", got)
	}
}

// TestKubernetesCompactor plays the agreement of API servers on who compacts, which counts on the version of a key.
func TestKubernetesCompactor(t *testing.T) {
	fs := vfs.NewMem()
	url, stop := startServer(t, fs, Options{})
	compact := func(client *clientv3.Client, expect, rev int64) (version int64, won bool) {
		const key = "compact_rev_key"
		r, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key), "=", expect)).
			Then(clientv3.OpPut(key, fmt.Sprint(rev))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		if !r.Succeeded {
			return r.Responses[0].GetResponseRange().Kvs[0].Version, false
		}
		if rev > 0 {
			if _, err := client.Compact(t.Context(), rev); err != nil {
				t.Fatal(err)
			}
		}
		return expect + 1, true
	}
	cl := connect(t, url)
	put, err := cl.Put(t.Context(), "/registry/x", "1")
	if err != nil {
		t.Fatal(err)
	}
	version := int64(0)
	for i, rev := range []int64{0, 0, put.Header.Revision} {
		var won bool
		if version, won = compact(cl, version, rev); !won || version != int64(i+1) {
			t.Errorf("round %d: won %t, version %d", i, won, version)
		}
	}
	if got, won := compact(cl, 0, 0); won || got != 3 {
		t.Errorf("another server: won %t, version %d; want to lose to 3", won, got)
	}
	if _, err := cl.Get(t.Context(), "/registry/x", clientv3.WithRev(1)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a read of what was compacted: %v", err)
	}
	_ = cl.Close()
	stop()
	cl = connect(t, serveDir(t, fs, Options{}))
	if got, won := compact(cl, 3, 0); !won || got != 4 {
		t.Errorf("after a restart: won %t, version %d", won, got)
	}
	r, err := cl.Get(t.Context(), "compact_rev_key")
	if err != nil || len(r.Kvs) != 1 || r.Kvs[0].CreateRevision != put.Header.Revision+1 ||
		string(r.Kvs[0].Value) != "0" {
		t.Errorf("the key: %v, %v; want it created at %d", r, err, put.Header.Revision+1)
	}
}

// TestConditions compares what etcd can compare, of a key that is there and of one that is not.
func TestConditions(t *testing.T) {
	cl := client(t)
	ctx := t.Context()
	if _, err := cl.Put(ctx, "k", "m"); err != nil {
		t.Fatal(err)
	}
	last, err := cl.Put(ctx, "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	rev := last.Header.Revision
	for _, tc := range []struct {
		name string
		cmp  clientv3.Cmp
		want bool
	}{
		{"value equal", clientv3.Compare(clientv3.Value("k"), "=", "v"), true},
		{"value greater", clientv3.Compare(clientv3.Value("k"), ">", "a"), true},
		{"value less", clientv3.Compare(clientv3.Value("k"), "<", "a"), false},
		{"value of nothing", clientv3.Compare(clientv3.Value("none"), "!=", "a"), false},
		{"version", clientv3.Compare(clientv3.Version("k"), "=", 2), true},
		{"version of nothing", clientv3.Compare(clientv3.Version("none"), "=", 0), true},
		{"created", clientv3.Compare(clientv3.CreateRevision("k"), "=", rev-1), true},
		{"created before", clientv3.Compare(clientv3.CreateRevision("k"), "<", rev-1), false},
		{"mod", clientv3.Compare(clientv3.ModRevision("k"), ">", rev-1), true},
		{"mod not", clientv3.Compare(clientv3.ModRevision("k"), "!=", rev), false},
		{"lease", clientv3.Compare(clientv3.LeaseValue("k"), "=", 0), true},
	} {
		r, err := cl.Txn(ctx).If(tc.cmp).Then(clientv3.OpGet("k")).Commit()
		if err != nil || r.Succeeded != tc.want {
			t.Errorf("%s: got %v, %v; want %t", tc.name, r, err, tc.want)
		}
	}
	// A write amid reads: those before it see the previous value.
	r, err := cl.Txn(ctx).If(clientv3.Compare(clientv3.Value("k"), "=", "other")).Then(clientv3.OpGet("k")).
		Else(clientv3.OpGet("k"), clientv3.OpPut("k", "new", clientv3.WithPrevKV()), clientv3.OpGet("k")).Commit()
	if err != nil || r.Succeeded || len(r.Responses) != 3 {
		t.Fatalf("write in the else branch: %v, %v", r, err)
	}
	before := r.Responses[0].GetResponseRange().Kvs[0]
	put := r.Responses[1].GetResponsePut().PrevKv
	after := r.Responses[2].GetResponseRange().Kvs[0]
	if string(before.Value) != "v" || string(put.Value) != "v" || put.ModRevision != rev ||
		string(after.Value) != "new" || after.Version != 3 {
		t.Errorf("reads about a write: got %v, %v, %v", before, put, after)
	}
	if r, err := cl.Put(ctx, "k", "", clientv3.WithIgnoreValue()); err != nil {
		t.Errorf("a put that keeps the value: %v, %v", r, err)
	}
	if r, err := cl.Get(ctx, "k"); err != nil || string(r.Kvs[0].Value) != "new" || r.Kvs[0].Version != 4 {
		t.Errorf("after a put that keeps the value: %v, %v", r, err)
	}
	if _, err := cl.Put(ctx, "/registry/plain", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Delete(ctx, ""); !errors.Is(err, rpctypes.ErrEmptyKey) {
		t.Errorf("delete without a key: got %v", err)
	}
	if _, err := cl.Txn(ctx).Then(clientv3.OpDelete("")).Commit(); !errors.Is(err, rpctypes.ErrEmptyKey) {
		t.Errorf("transaction that deletes without a key: got %v", err)
	}
	if r, err := cl.Delete(ctx, "a\x00b"); err != nil || r.Deleted != 0 {
		t.Errorf("delete of a key that cannot be: %v, %v", r, err)
	}
}

// TestFactsOfSharedKeys: what the API server writes by the store, etcd's clients see with create_revision and version,
// in ranges, in conditions and in watches.
func TestFactsOfSharedKeys(t *testing.T) {
	fs := vfs.NewMem()
	st, err := embed.Open(embed.Options{Dir: "data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	first, err := st.Create(ctx, "/registry/pods/a", []byte("1"))
	if err == nil {
		_, err = st.Update(ctx, "/registry/pods/a", []byte("2"), first.Revision)
	}
	if err = errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	client := connect(t, serveDir(t, fs, Options{}))
	facts := func(kv *mvccpb.KeyValue) string {
		return fmt.Sprintf("%s at %d, created at %d, version %d", kv.Value, kv.ModRevision, kv.CreateRevision,
			kv.Version)
	}
	r, err := client.Get(ctx, "/registry/", clientv3.WithPrefix())
	if err != nil || len(r.Kvs) != 1 || facts(r.Kvs[0]) != "2 at 3, created at 2, version 2" {
		t.Errorf("a range: got %v, %v", r, err)
	}
	txn, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version("/registry/pods/a"), "=", 2),
		clientv3.Compare(clientv3.CreateRevision("/registry/pods/a"), "=", 2)).
		Then(clientv3.OpPut("/registry/pods/a", "3")).Commit()
	if err != nil || !txn.Succeeded {
		t.Errorf("conditions on both: got %v, %v", txn, err)
	}
	if _, err := client.Delete(ctx, "/registry/pods/a"); err != nil {
		t.Fatal(err)
	}
	var got []string
	watching, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for answer := range client.Watch(watching, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(2),
		clientv3.WithPrevKV()) {
		for _, e := range answer.Events {
			line := e.Type.String() + " " + facts(e.Kv)
			if e.PrevKv != nil {
				line += " before " + facts(e.PrevKv)
			}
			got = append(got, line)
		}
		if len(got) >= 4 {
			break
		}
	}
	want := []string{
		"PUT 1 at 2, created at 2, version 1",
		"PUT 2 at 3, created at 2, version 2 before 1 at 0, created at 2, version 1",
		"PUT 3 at 4, created at 2, version 3 before 2 at 0, created at 2, version 2",
		"DELETE  at 5, created at 0, version 0 before 3 at 0, created at 2, version 3",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSorted(t *testing.T) {
	cl := client(t)
	for _, kv := range []string{"s/b=1", "s/a=3", "s/c=2", "s/a=4"} {
		k, v, _ := strings.Cut(kv, "=")
		if _, err := cl.Put(t.Context(), k, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		opts []clientv3.OpOption
		want string
	}{
		{[]clientv3.OpOption{clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)}, "c b a 3 false"},
		{[]clientv3.OpOption{clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend)}, "b c a 3 false"},
		{
			[]clientv3.OpOption{
				clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(2),
			}, "b a 3 true",
		},
		{[]clientv3.OpOption{clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend)}, "a c b 3 false"},
		{
			[]clientv3.OpOption{
				clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend), clientv3.WithLimit(1),
			}, "a 3 true",
		},
		{[]clientv3.OpOption{clientv3.WithMinModRev(4), clientv3.WithMaxModRev(4)}, "c 3 false"},
		{[]clientv3.OpOption{clientv3.WithMaxCreateRev(2), clientv3.WithKeysOnly()}, "b 3 false"},
	} {
		r, err := cl.Get(t.Context(), "s/", append(tc.opts, clientv3.WithPrefix())...)
		if err != nil {
			t.Errorf("%s: %v", tc.want, err)
			continue
		}
		var got []string
		for _, kv := range r.Kvs {
			got = append(got, strings.TrimPrefix(string(kv.Key), "s/"))
		}
		if g := fmt.Sprintf("%s %d %t", strings.Join(got, " "), r.Count, r.More); g != tc.want {
			t.Errorf("got %q, want %q", g, tc.want)
		}
		stream, err := cl.GetStream(t.Context(), "s/", append(tc.opts, clientv3.WithPrefix())...)
		if err == nil {
			_, err = clientv3.GetStreamToGetResponse(stream)
		}
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s, streamed: got %v, want Unimplemented", tc.want, err)
		}
	}
}

// TestQuietWatchHearsOfProgress: a watch that asks for it learns how far the store is although nothing of its own
// happens.
func TestQuietWatchHearsOfProgress(t *testing.T) {
	c := connect(t, serveDir(t, vfs.NewMem(), Options{ProgressEvery: 10 * time.Millisecond}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	quiet := c.Watch(ctx, "quiet", clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	if r := <-quiet; !r.Created {
		t.Fatalf("got %+v, want that the watch was created", r)
	}
	put, err := c.Put(ctx, "elsewhere", "")
	if err != nil {
		t.Fatal(err)
	}
	for {
		r, ok := <-quiet
		if !ok || !r.IsProgressNotify() {
			t.Fatalf("got %+v, want progress", r)
		}
		if r.Header.Revision >= put.Header.Revision {
			return
		}
	}
}

// TestFragments: great answers come in parts when the client wants that, and the client puts them together again.
func TestFragments(t *testing.T) {
	cl := client(t)
	value := strings.Repeat("x", 300<<10)
	for i := range 12 {
		if _, err := cl.Put(t.Context(), fmt.Sprintf("f/%02d", i), value); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := cl.Watch(ctx, "f/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithFragment())
	n := 0
	for n < 12 {
		r, ok := <-w
		if !ok || r.Err() != nil {
			t.Fatalf("watch ended after %d events: %v", n, r.Err())
		}
		for _, e := range r.Events {
			if want := fmt.Sprintf("f/%02d", n); string(e.Kv.Key) != want || len(e.Kv.Value) != len(value) {
				t.Errorf("event %d is of %s, want %s", n, e.Kv.Key, want)
			}
			n++
		}
	}
	stream, err := cl.GetStream(ctx, "f/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var parts []int
	for r := range stream {
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		parts = append(parts, len(r.Kvs))
		if (r.Header != nil) != (len(parts) == 3) {
			t.Errorf("part %d of the stream has the header %v; the last one has it", len(parts), r.Header)
		}
	}
	if want := []int{4, 4, 4}; !slices.Equal(parts, want) {
		t.Errorf("got a stream in parts of %v keys, want %v", parts, want)
	}
}
