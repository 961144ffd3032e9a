// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"keelson/store"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/storetest"
)

// serve serves an empty embedded store and returns its URL.
func serve(t testing.TB) string {
	t.Helper()
	return serveDir(t, vfs.NewMem(), Options{})
}

// serveDir serves the embedded store in fs.
func serveDir(t testing.TB, fs vfs.FS, o Options) string {
	t.Helper()
	url, stop := startServer(t, fs, o)
	t.Cleanup(stop)
	return url
}

// startServer serves the embedded store in fs until stop.
func startServer(t testing.TB, fs vfs.FS, options Options) (url string, stop func()) {
	t.Helper()
	st, err := embed.Open(embed.Options{Dir: "data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := grpc.NewServer(ServerOptions()...)
	options.URL = "http://" + listener.Addr().String()
	options.Dir = t.TempDir()
	api := New(st, options)
	api.Register(s)
	ended := make(chan error, 2)
	go func() { ended <- api.Run(ctx) }()      // ends with ctx
	go func() { ended <- s.Serve(listener) }() // ends with Stop
	return options.URL, func() {
		cancel()
		s.Stop()
		if err := errors.Join(<-ended, <-ended, st.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestSuite runs the store's suite through etcd's client: what our own API servers ask of etcd, this answers.
func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{serve(t)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
}

func client(t *testing.T) *clientv3.Client {
	t.Helper()
	return connect(t, serve(t))
}

func connect(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRanges(t *testing.T) {
	cl := client(t)
	for _, k := range []string{"/a", "/a/1", "/a/2", "/a/3", "/b", "/c/1"} {
		if _, err := cl.Put(t.Context(), k, "v"+k); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		key  string
		opts []clientv3.OpOption
		want string // keys, count, more
	}{
		{"one", "/a/2", nil, "/a/2 1 false"},
		{"none", "/x", nil, " 0 false"},
		{"prefix", "/a/", []clientv3.OpOption{clientv3.WithPrefix()}, "/a/1 /a/2 /a/3 3 false"},
		{
			"prefix, limited", "/a/",
			[]clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(2)},
			"/a/1 /a/2 3 true",
		},
		{"prefix, counted", "/a", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCountOnly()}, " 4 false"},
		{
			"prefix, counted, limited", "/a", []clientv3.OpOption{
				clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithLimit(1),
			}, " 4 false",
		},
		{"range", "/a/2", []clientv3.OpOption{clientv3.WithRange("/b")}, "/a/2 /a/3 2 false"},
		{"range, limited", "/a/2", []clientv3.OpOption{clientv3.WithRange("/c"), clientv3.WithLimit(1)}, "/a/2 3 true"},
		{"range within one key's children", "/a/2", []clientv3.OpOption{clientv3.WithRange("/a/3")}, "/a/2 1 false"},
		{"empty range", "/b", []clientv3.OpOption{clientv3.WithRange("/a")}, " 0 false"},
		{"from a key", "/b", []clientv3.OpOption{clientv3.WithFromKey()}, "/b /c/1 2 false"},
		{"everything", "", []clientv3.OpOption{clientv3.WithPrefix()}, "/a /a/1 /a/2 /a/3 /b /c/1 6 false"},
		{"before", "/", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(3)}, "/a /a/1 2 false"},
	}
	for _, tc := range tests {
		getResponse, err := cl.Get(t.Context(), tc.key, tc.opts...)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		var keys []string
		for _, kv := range getResponse.Kvs {
			keys = append(keys, string(kv.Key))
		}
		if got := fmt.Sprintf("%s %d %t", strings.Join(keys, " "), getResponse.Count,
			getResponse.More); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
		stream, err := cl.GetStream(t.Context(), tc.key, tc.opts...)
		if err != nil {
			t.Errorf("%s, streamed: %v", tc.name, err)
			continue
		}
		if s, err := clientv3.GetStreamToGetResponse(stream); err != nil ||
			!proto.Equal((*pb.RangeResponse)(s), (*pb.RangeResponse)(getResponse)) {
			t.Errorf("%s, streamed: got %v, %v; want %v", tc.name, s, err, getResponse)
		}
	}
	r, err := cl.Get(t.Context(), "/a", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(r.Kvs) != 4 || len(r.Kvs[0].Value) != 0 {
		t.Errorf("keys only: got %v, %v", r, err)
	}
}

func TestTransactions(t *testing.T) {
	cl := client(t)
	mod := func(op string, n int64) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision("/k"), op, n) }
	created := func(op string, n int64) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision("/k"), op, n) }
	put := clientv3.OpPut("/k", "v")
	get := clientv3.OpGet("/k")
	del := clientv3.OpDelete("/k")
	steps := []struct {
		name string
		cmp  []clientv3.Cmp
		then []clientv3.Op
		want bool
	}{
		{"delete what is absent", []clientv3.Cmp{created(">", 0)}, []clientv3.Op{del}, false},
		{"create", []clientv3.Cmp{created("=", 0)}, []clientv3.Op{put}, true}, // revision 2
		{"create again", []clientv3.Cmp{mod("=", 0)}, []clientv3.Op{put}, false},
		{"update", []clientv3.Cmp{mod("=", 2)}, []clientv3.Op{put}, true},
		{"update what has changed", []clientv3.Cmp{mod("=", 2)}, []clientv3.Op{put}, false},
		{"update what is there", []clientv3.Cmp{created("!=", 0)}, []clientv3.Op{put}, true},
		{"read under a condition", []clientv3.Cmp{mod("=", 4)}, []clientv3.Op{get, get}, true},
		{"read under another", []clientv3.Cmp{mod("=", 3)}, []clientv3.Op{get}, false},
		{"put", nil, []clientv3.Op{put}, true},
		{"delete", []clientv3.Cmp{mod("=", 5)}, []clientv3.Op{del}, true},
		{"read what is gone", []clientv3.Cmp{created("=", 0)}, []clientv3.Op{get}, true},
	}
	for _, tc := range steps {
		r, err := cl.Txn(t.Context()).If(tc.cmp...).Then(tc.then...).Else(get).Commit()
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if r.Succeeded != tc.want {
			t.Errorf("%s: succeeded: got %t, want %t", tc.name, r.Succeeded, tc.want)
		}
	}
	refused := map[string]clientv3.Txn{
		"two writes":       cl.Txn(t.Context()).Then(put, clientv3.OpPut("/l", "")),
		"another key":      cl.Txn(t.Context()).If(mod("=", 0)).Then(clientv3.OpPut("/l", "")),
		"range deleted":    cl.Txn(t.Context()).Then(clientv3.OpDelete("/", clientv3.WithPrefix())),
		"range compared":   cl.Txn(t.Context()).If(mod("=", 0).WithPrefix()).Then(get),
		"nested":           cl.Txn(t.Context()).Then(clientv3.OpTxn(nil, []clientv3.Op{get}, nil)),
		"different writes": cl.Txn(t.Context()).Then(put).Else(clientv3.OpPut("/l", "")),
	}
	for name, txn := range refused {
		if _, err := txn.Commit(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: got %v, want Unimplemented", name, err)
		}
	}
	if _, err := cl.Put(t.Context(), "/a\x00b", ""); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a key with a zero byte: got %v", err)
	}
}

func TestWatch(t *testing.T) {
	cl := client(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ranged := cl.Watch(ctx, "/a/2", clientv3.WithRange("/a/4"), clientv3.WithRev(1), clientv3.WithPrevKV())
	noDelete := cl.Watch(ctx, "/a/2", clientv3.WithRev(1), clientv3.WithFilterDelete())
	for _, k := range []string{"/a/1", "/a/2", "/a/3", "/a/4"} {
		if _, err := cl.Put(ctx, k, "v"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cl.Put(ctx, "/a/2", "w"); err != nil {
		t.Fatal(err)
	}
	last, err := cl.Delete(ctx, "/a/2")
	if err != nil {
		t.Fatal(err)
	}
	read := func(w clientv3.WatchChan, n int) string {
		var got []string
		for len(got) < n {
			r, ok := <-w
			if !ok || r.Err() != nil {
				t.Fatalf("watch ended: %v", r.Err())
			}
			for _, e := range r.Events {
				prev := ""
				if e.PrevKv != nil {
					prev = "<-" + string(e.PrevKv.Value)
				}
				got = append(got, fmt.Sprintf("%s %s=%s@%d%s %t", e.Type, e.Kv.Key, e.Kv.Value, e.Kv.ModRevision, prev,
					e.IsCreate()))
			}
		}
		return strings.Join(got, ", ")
	}
	if got, want := read(ranged, 4), "PUT /a/2=v@3 true, PUT /a/3=v@4 true, PUT /a/2=w@6<-v false, DELETE /a/2=@7<-w "+
		"false"; got != want {
		t.Errorf("a range with values before: got %s, want %s", got, want)
	}
	if got, want := read(noDelete, 2), "PUT /a/2=v@3 true, PUT /a/2=w@6 false"; got != want {
		t.Errorf("without deletions: got %s, want %s", got, want)
	}
	if err := cl.RequestProgress(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-ranged; !r.IsProgressNotify() || r.Header.Revision < last.Header.Revision {
		t.Errorf("progress: got %+v, want one at %d", r, last.Header.Revision)
	}
	if _, err := cl.Compact(ctx, last.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if r := <-cl.Watch(ctx, "/a/2", clientv3.WithRev(2)); r.CompactRevision == 0 {
		t.Errorf("a watch from compacted history: got %+v, want a compact revision", r)
	}
}
