// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"keelson/store"
	"keelson/store/etcd/etcdtest"
)

// faults loses the answers of transactions, as a leader does that is killed.
type faults struct {
	// lose counts the answers that are lost; drop says that the requests do not arrive either.
	lose atomic.Int32
	drop atomic.Bool
	// meanwhile runs before the error of a lost answer is returned.
	meanwhile func()
}

func (f *faults) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if method != "/etcdserverpb.KV/Txn" || f.lose.Add(-1) < 0 {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if !f.drop.Load() {
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
	}
	if f.meanwhile != nil {
		f.meanwhile()
	}
	return rpctypes.ErrGRPCTimeoutDueToLeaderFail
}

// TestLostAnswers: the store finds out what became of writes whose answers were lost, whatever others have done to the
// keys since.
func TestLostAnswers(t *testing.T) {
	urls := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	other := open(t, Options{Servers: urls})
	f := &faults{}
	st := open(t, Options{Servers: urls, dial: []grpc.DialOption{grpc.WithChainUnaryInterceptor(f.intercept)}})
	ctx := t.Context()
	must := func(w store.Written, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return w.Revision
	}
	overwrite := func(key, value string) {
		kv, _, err := other.Get(ctx, key, 0)
		if err != nil {
			t.Error(err)
			return
		}
		must(other.Update(ctx, key, []byte(value), kv.Revision))
	}
	remove := func(key string) {
		if _, _, err := other.Delete(ctx, key, 0); err != nil {
			t.Error(err)
		}
	}
	conflict := func(err error) bool {
		_, is := errors.AsType[*store.ConflictError](err)
		return is
	}
	type act func(key string, rev int64) (store.Written, error)
	create := func(key string, _ int64) (store.Written, error) { return st.Create(ctx, key, []byte("mine")) }
	update := func(key string, rev int64) (store.Written, error) { return st.Update(ctx, key, []byte("mine"), rev) }
	erase := func(key string, rev int64) (store.Written, error) {
		kv, w, err := st.Delete(ctx, key, rev)
		if err == nil && string(kv.Value) != "before" {
			return w, fmt.Errorf("deleted %q", kv.Value)
		}
		return w, err
	}
	for i, c := range []struct {
		what      string
		there     bool // the key exists before
		act       act
		lose      int32
		drop      bool
		meanwhile func(key string)
		ok        func(error) bool // nil: success
		after     string           // the value then; empty: absent
	}{
		{what: "create, happened", act: create, lose: 1, after: "mine"},
		{what: "create, happened twice lost", act: create, lose: 2, after: "mine"},
		{what: "create, did not happen", act: create, lose: 2, drop: true, after: "mine"},
		{what: "create, then changed", act: create, lose: 1, after: "theirs", meanwhile: func(k string) {
			overwrite(k, "theirs")
		}},
		{what: "create, then deleted", act: create, lose: 1, meanwhile: remove},
		{what: "create, another came first", act: create, lose: 1, drop: true, after: "theirs", meanwhile: func(k string) {
			must(other.Create(ctx, k, []byte("theirs")))
		}, ok: func(err error) bool { return errors.Is(err, store.ErrExists) }},
		{what: "create, exists", there: true, act: create, lose: 1, after: "before", ok: func(err error) bool {
			return errors.Is(err, store.ErrExists)
		}},
		{what: "update, happened", there: true, act: update, lose: 1, after: "mine"},
		{what: "update, did not happen", there: true, act: update, lose: 1, drop: true, after: "mine"},
		{what: "update, then changed", there: true, act: update, lose: 1, after: "theirs", meanwhile: func(k string) {
			overwrite(k, "theirs")
		}},
		{what: "update, then deleted", there: true, act: update, lose: 1, meanwhile: remove},
		{
			what: "update, another came first", there: true, act: update, lose: 1, drop: true, after: "theirs",
			meanwhile: func(k string) { overwrite(k, "theirs") }, ok: conflict,
		},
		{
			what: "update, another deleted first", there: true, act: update, lose: 1, drop: true, meanwhile: remove,
			ok: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
		},
		{what: "delete, happened", there: true, act: erase, lose: 1},
		{what: "delete, did not happen", there: true, act: erase, lose: 1, drop: true},
		{what: "delete, then created", there: true, act: erase, lose: 1, after: "theirs", meanwhile: func(k string) {
			must(other.Create(ctx, k, []byte("theirs")))
		}},
		{
			what: "delete, another came first", there: true, act: erase, lose: 1, drop: true, after: "theirs",
			meanwhile: func(k string) { overwrite(k, "theirs") }, ok: conflict,
		},
	} {
		key := fmt.Sprintf("/k%d", i)
		rev := int64(0)
		if c.there {
			must(other.Create(ctx, key, []byte("old")))
			overwrite(key, "before")
			kv, _, _ := other.Get(ctx, key, 0)
			rev = kv.Revision
		}
		f.meanwhile = func() {
			if c.meanwhile != nil {
				c.meanwhile(key)
			}
		}
		f.drop.Store(c.drop)
		f.lose.Store(c.lose)
		w, err := c.act(key, rev)
		switch {
		case c.ok != nil && !c.ok(err):
			t.Errorf("%s: got %v", c.what, err)
		case c.ok == nil && err != nil:
			t.Errorf("%s: got %v, want success", c.what, err)
		case c.ok == nil && w.Revision <= rev:
			t.Errorf("%s: got revision %d, want one after %d", c.what, w.Revision, rev)
		}
		kv, _, err := other.Get(ctx, key, 0)
		if err != nil && !errors.Is(err, store.ErrNotFound) || string(kv.Value) != c.after {
			t.Errorf("%s: afterwards %q, %v; want %q", c.what, kv.Value, err, c.after)
		}
		if err == nil && c.after == "mine" && kv.Revision != w.Revision {
			t.Errorf("%s: the answer was revision %d, the key is at %d", c.what, w.Revision, kv.Revision)
		}
	}
}

// TestLeadersDie kills the leader of three members three times while writers count, each a key of its own, and readers
// read: there is no error and no conflict at all, and each count is what was acknowledged.
func TestLeadersDie(t *testing.T) {
	members := etcdtest.Start(t, 3, nil)
	st := open(t, Options{Servers: etcdtest.URLs(members)})
	createUntil(t, st, "/ready")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var slowest atomic.Int64
	var failed atomic.Int32
	timed := func(what string, f func() error) bool {
		begin := time.Now()
		err := f()
		took := time.Since(begin)
		for old := slowest.Load(); int64(took) > old && !slowest.CompareAndSwap(old, int64(took)); old = slowest.Load() {
		}
		if err != nil && ctx.Err() == nil {
			failed.Add(1)
			t.Errorf("%s: %v after %s", what, err, took)
		}
		return err == nil
	}
	const n = 6
	counts := make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			key := fmt.Sprintf("/count/%d", i)
			rev := int64(0)
			for ctx.Err() == nil {
				value := []byte(fmt.Sprint(counts[i] + 1))
				ok := timed("write", func() error {
					w, err := st.Create(context.WithoutCancel(ctx), fmt.Sprintf("/other/%d/%s", i, value), value)
					if err != nil {
						return err
					}
					if rev == 0 {
						w, err = st.Create(context.WithoutCancel(ctx), key, value)
					} else {
						w, err = st.Update(context.WithoutCancel(ctx), key, value, rev)
					}
					rev = w.Revision
					return err
				})
				if !ok {
					return
				}
				counts[i]++
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				timed("read", func() error {
					_, err := st.Revision(ctx)
					return err
				})
			}
		})
	}
	for range 3 {
		leader := leaderOf(t, members)
		leader.Kill(t)
		leaderOf(t, members)
		createUntil(t, st, fmt.Sprintf("/killed/%s/%d", leader.URL, time.Now().UnixNano()))
		leader.Run(t)
		createUntil(t, st, fmt.Sprintf("/back/%s/%d", leader.URL, time.Now().UnixNano()))
	}
	stop()
	wg.Wait()
	total := 0
	for i, want := range counts {
		total += want
		kv, _, err := st.Get(t.Context(), fmt.Sprintf("/count/%d", i), 0)
		if err != nil || string(kv.Value) != fmt.Sprint(want) || kv.Version != int64(want) {
			t.Errorf("counter %d: got %q in version %d, %v; want %d", i, kv.Value, kv.Version, err, want)
		}
	}
	t.Logf("%d writes, the slowest call took %s", 2*total, time.Duration(slowest.Load()).Round(time.Millisecond))
}

// leaderOf waits until a member that runs leads.
func leaderOf(t *testing.T, members []*etcdtest.Member) *etcdtest.Member {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for _, m := range members {
			if m.LeadsNow(t.Context()) {
				return m
			}
		}
	}
	t.Fatal("no member leads")
	return nil
}
