// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"keelson/store"
	"keelson/store/etcd/etcdtest"
	"keelson/store/storetest"
)

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, Options{Servers: etcdtest.URLs(etcdtest.Start(t, 1, nil))})
	})
}

// follow checks that a watch learns of every revision from the given one on, until the test ends.
type follow struct {
	mu   sync.Mutex
	next int64
	err  error
	tick chan struct{}
}

func newFollow(t *testing.T, s *Store) *follow {
	t.Helper()
	from, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(t.Context(), "", from)
	if err != nil {
		t.Fatal(err)
	}
	f := &follow{next: from + 1, tick: make(chan struct{}, 1)}
	go func() { // ends with the watch
		for batch := range w.Events() {
			f.mu.Lock()
			for _, e := range batch {
				if e.KV.Revision != f.next && f.err == nil {
					f.err = fmt.Errorf("watch: got revision %d, want %d", e.KV.Revision, f.next)
				}
				f.next = e.KV.Revision + 1
			}
			f.mu.Unlock()
			select {
			case f.tick <- struct{}{}:
			default:
			}
		}
	}()
	return f
}

// reach waits until the watch has learned of rev.
func (f *follow) reach(t *testing.T, rev int64) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		f.mu.Lock()
		next := f.next
		err := f.err
		f.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if next > rev {
			return
		}
		select {
		case <-f.tick:
		case <-limit:
			t.Fatalf("the watch is at %d, want %d", next-1, rev)
		}
	}
}

// createUntil creates key, again and again while etcd is unavailable.
func createUntil(t *testing.T, st *Store, key string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		w, err := st.Create(ctx, key, []byte(key))
		var away *store.UnavailableError
		switch {
		case err == nil:
			return w.Revision
		case errors.Is(err, store.ErrExists): // an attempt with an unknown outcome
			kv, _, err := st.Get(ctx, key, 0)
			if err == nil {
				return kv.Revision
			}
		case !errors.As(err, &away):
			t.Fatalf("Create(%s): got %v, want an UnavailableError", key, err)
		}
	}
}

// returns asks until etcd is available, which it may not be while its members choose a leader.
func returns(t *testing.T, what string, ask func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		err := ask()
		if err == nil {
			return
		}
		if _, away := errors.AsType[*store.UnavailableError](err); !away || time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// TestTwoServers runs two API servers' stores on one etcd: what one has acknowledged the other reads, and its watch
// reaches the revision that it reads.
func TestTwoServers(t *testing.T) {
	urls := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	a := open(t, Options{Servers: urls})
	st := open(t, Options{Servers: urls})
	fa := newFollow(t, a)
	fb := newFollow(t, st)
	for i := range 50 {
		key := fmt.Sprintf("/k%d", i)
		w, err := a.Create(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		rev, err := st.Revision(t.Context())
		if err != nil || rev < w.Revision {
			t.Fatalf("Revision at the other server: got %d, %v; want at least %d", rev, err, w.Revision)
		}
		if kv, _, err := st.Get(t.Context(), key, 0); err != nil || kv.Revision != w.Revision {
			t.Fatalf("Get at the other server: got %d, %v; want %d", kv.Revision, err, w.Revision)
		}
		fa.reach(t, rev)
		fb.reach(t, rev)
	}
}

// TestRestart kills etcd and starts it again: writes answer UnavailableError meanwhile, the watch goes on without a
// gap.
func TestRestart(t *testing.T) {
	m := etcdtest.Start(t, 1, nil)
	st := open(t, Options{Servers: etcdtest.URLs(m), Patience: time.Second})
	follow := newFollow(t, st)
	follow.reach(t, createUntil(t, st, "/before"))
	m[0].Kill(t)
	var away *store.UnavailableError
	if _, err := st.Create(t.Context(), "/away", nil); !errors.As(err, &away) {
		t.Errorf("Create without etcd: got %v, want an UnavailableError", err)
	}
	if err := st.Health(t.Context()); !errors.As(err, &away) {
		t.Errorf("Health soon after etcd was killed: got %v, want an UnavailableError", err)
	}
	m[0].Run(t)
	rev := int64(0)
	for i := range 20 {
		rev = createUntil(t, st, fmt.Sprintf("/after%d", i))
	}
	follow.reach(t, rev)
	returns(t, "Health with etcd again", func() error { return st.Health(t.Context()) })
}

// TestHang stops etcd from answering: calls end with their context or the store's patience.
func TestHang(t *testing.T) {
	m := etcdtest.Start(t, 1, nil)
	st := open(t, Options{Servers: etcdtest.URLs(m), Patience: 5 * time.Second})
	m[0].Pause(t)
	for end := time.Now().Add(time.Minute); ; { // a process takes a moment to stop, and may answer meanwhile
		_, err := st.Revision(t.Context())
		if _, away := errors.AsType[*store.UnavailableError](err); away {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("Revision: got %v, want an UnavailableError", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := st.Create(ctx, "/a", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Create with an ended context: got %v", err)
	}
	m[0].Continue(t)
	createUntil(t, st, "/b")
}

// TestLeaderLoss kills the leader of three members while several writers write: nothing confirmed is lost, the watch
// has no gap.
func TestLeaderLoss(t *testing.T) {
	members := etcdtest.Start(t, 3, nil)
	st := open(t, Options{Servers: etcdtest.URLs(members), Patience: 2 * time.Second})
	follow := newFollow(t, st)
	revs := make([][]int64, 4)
	half := make(chan struct{}, len(revs))
	var wg sync.WaitGroup
	for i := range revs {
		wg.Go(func() {
			for j := range 60 {
				revs[i] = append(revs[i], createUntil(t, st, fmt.Sprintf("/w%d/%d", i, j)))
				if j == 20 {
					half <- struct{}{}
				}
			}
		})
	}
	<-half
	for _, m := range members {
		if m.Leads(t) {
			m.Kill(t)
			break
		}
	}
	wg.Wait()
	var rev int64
	returns(t, "Revision", func() (err error) {
		rev, err = st.Revision(t.Context())
		return err
	})
	follow.reach(t, rev)
	for i := range revs {
		for j, rev := range revs[i] {
			key := fmt.Sprintf("/w%d/%d", i, j)
			var kv store.KV
			returns(t, "Get", func() (err error) {
				kv, _, err = st.Get(t.Context(), key, 0)
				return err
			})
			if kv.Revision != rev {
				t.Errorf("Get(%s): got %d, want %d", key, kv.Revision, rev)
			}
		}
	}
}

func TestCompactsByItself(t *testing.T) {
	urls := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	s := open(t, Options{Servers: urls, HistoryAge: 50 * time.Millisecond})
	old := createUntil(t, s, "/old")
	createUntil(t, s, "/new")
	limit := time.Now().Add(time.Minute)
	for {
		_, _, err := s.Get(t.Context(), "/old", old)
		if errors.Is(err, store.ErrCompacted) {
			break
		}
		if err != nil || time.Now().After(limit) {
			t.Fatalf("Get at an old revision: got %v, want ErrCompacted after a while", err)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	_, err := Open(t.Context(), Options{Servers: []string{"http://127.0.0.1:1"}, Patience: 300 * time.Millisecond})
	if _, ok := errors.AsType[*store.UnavailableError](err); !ok {
		t.Errorf("Open without etcd: got %v, want an UnavailableError", err)
	}
}
