// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func grant(t *testing.T, c *clientv3.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	r, err := c.Grant(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return r.ID
}

func put(t *testing.T, c *clientv3.Client, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := c.Put(t.Context(), key, value, opts...); err != nil {
		t.Fatal(err)
	}
}

// there are the keys with their values.
func there(t *testing.T, c *clientv3.Client, keys ...string) string {
	t.Helper()
	out := ""
	for _, key := range keys {
		r, err := c.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range r.Kvs {
			out += fmt.Sprintf("%s=%s ", kv.Key, kv.Value)
		}
	}
	return out
}

// TestLeases revokes a lease after a restart: what hangs on it goes, what was written again without it stays.
func TestLeases(t *testing.T) {
	fs := vfs.NewMem()
	url, stop := startServer(t, fs, Options{})
	client := connect(t, url)
	id := grant(t, client, 1000)
	for _, key := range []string{"/registry/gone", "gone", "kept", "other", "same"} {
		put(t, client, key, "1", clientv3.WithLease(id))
	}
	put(t, client, "kept", "2")
	put(t, client, "same", "1")
	second := grant(t, client, 1000)
	put(t, client, "other", "1", clientv3.WithLease(second))
	ttl, err := client.TimeToLive(t.Context(), id, clientv3.WithAttachedKeys())
	if err != nil || fmt.Sprintf("%s", ttl.Keys) != "[/registry/gone gone]" || ttl.GrantedTTL != 1000 || ttl.TTL < 1 {
		t.Errorf("TimeToLive: got %+v, %v", ttl, err)
	}
	all, err := client.Leases(t.Context())
	if err != nil || len(all.Leases) != 2 {
		t.Errorf("Leases: got %+v, %v; want 2", all, err)
	}
	if _, err := client.Put(t.Context(), "x", "", clientv3.WithLease(7)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("Put under a lease that is not there: got %v", err)
	}
	if r, err := client.Get(t.Context(), "other"); err != nil || r.Kvs[0].Lease != int64(second) {
		t.Errorf("the lease of a key: got %v, %v; want %d", r, err, second)
	}
	_ = client.Close()
	stop()
	client = connect(t, serveDir(t, fs, Options{}))
	if ka, err := client.KeepAliveOnce(t.Context(), id); err != nil || ka.TTL != 1000 {
		t.Errorf("KeepAlive after a restart: got %+v, %v", ka, err)
	}
	if _, err := client.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got, want := there(t, client, "/registry/gone", "gone", "kept", "other", "same"),
		"kept=2 other=1 same=1 "; got != want {
		t.Errorf("after the lease: got %q, want %q", got, want)
	}
	if _, err := client.Revoke(t.Context(), id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("Revoke again: got %v", err)
	}
	if _, err := client.KeepAliveOnce(t.Context(), id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("KeepAlive of what is revoked: got %v", err)
	}
	if _, err := client.Revoke(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if r, err := client.Get(t.Context(), leaseRoot, clientv3.WithPrefix(), clientv3.WithKeysOnly()); err != nil ||
		len(r.Kvs) != 0 {
		t.Errorf("what is left of the leases: %v, %v", r.Kvs, err)
	}
}

// TestLeaseExpires waits for a lease of a second to end by itself; one that is kept alive does not.
func TestLeaseExpires(t *testing.T) {
	cl := client(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := cl.Watch(ctx, "short")
	put(t, cl, "short", "1", clientv3.WithLease(grant(t, cl, 1)))
	put(t, cl, "long", "1", clientv3.WithLease(grant(t, cl, 1000)))
	for gone := false; !gone; {
		r, ok := <-w
		if !ok {
			t.Fatal("the lease's key is still there after a minute")
		}
		for _, e := range r.Events {
			gone = gone || e.Type == clientv3.EventTypeDelete
		}
	}
	if got := there(t, cl, "short", "long"); got != "long=1 " {
		t.Errorf("got %q, want the long one alone", got)
	}
}

// TestLock runs etcd's own recipe of a lock, which is made of leases, conditions on create_revision and sorted ranges.
func TestLock(t *testing.T) {
	url := serve(t)
	lock := func() *concurrency.Mutex {
		s, err := concurrency.NewSession(connect(t, url), concurrency.WithTTL(1000))
		if err != nil {
			t.Fatal(err)
		}
		return concurrency.NewMutex(s, "lock/")
	}
	first := lock()
	second := lock()
	if err := first.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("a second holder: got %v, want ErrLocked", err)
	}
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Lock(t.Context()); err != nil {
		t.Errorf("when the first has let go: %v", err)
	}
}
