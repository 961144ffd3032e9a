// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/cluster/datadir"
	"keelson/cluster/storage"
	"keelson/lib/waittest"
	"keelson/store"
	"keelson/store/backup"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/etcd/etcdtest"
)

// stored are a store's keys and values.
func stored(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	if _, err := backup.Walk(t.Context(), s, "/", func(kv store.KV) error {
		out[kv.Key] = string(kv.Value)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func embedded(t *testing.T, dir datadir.Dir, f func(s store.Store)) {
	t.Helper()
	s, err := embed.Open(embed.Options{Dir: dir.Sub("store")})
	if err != nil {
		t.Fatal(err)
	}
	f(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMigrate(t *testing.T) {
	etcdConfig := storage.Config{Servers: etcdtest.URLs(etcdtest.Start(t, 1, nil))}
	dir, err := datadir.Dir(filepath.Join(t.TempDir(), "data")).Prepare()
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	embedded(t, dir, func(s store.Store) {
		for i := range 300 {
			if _, err := s.Create(t.Context(), fmt.Sprintf("/registry/pods/a/%d", i),
				bytes.Repeat([]byte{byte(i), 0}, i)); err != nil {
				t.Fatal(err)
			}
		}
		want = stored(t, s)
	})
	if n, err := MigrateToEtcd(t.Context(), dir, etcdConfig, false); err != nil || n != 300 {
		t.Fatalf("MigrateToEtcd: got %d, %v", n, err)
	}
	if _, err := MigrateToEtcd(t.Context(), dir, etcdConfig, false); err == nil ||
		!strings.Contains(err.Error(), "already") {
		t.Errorf("MigrateToEtcd once more: got %v", err)
	}
	remote, err := etcd.Open(t.Context(), etcd.Options{Servers: etcdConfig.Servers})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remote.Close() }()
	if got := stored(t, remote); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("etcd holds %d keys, not the same as the store's %d", len(got), len(want))
	}
	back, err := datadir.Dir(filepath.Join(t.TempDir(), "back")).Prepare()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := MigrateFromEtcd(t.Context(), back, etcdConfig); err != nil || n != 300 {
		t.Fatalf("MigrateFromEtcd: got %d, %v", n, err)
	}
	embedded(t, back, func(s store.Store) {
		if got := stored(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("back from etcd: %d keys, not the same as before", len(got))
		}
	})
	if _, err := MigrateFromEtcd(t.Context(), back, etcdConfig); err == nil ||
		!strings.Contains(err.Error(), "is there already") {
		t.Errorf("MigrateFromEtcd over a store: got %v", err)
	}
	if _, err := remote.Create(t.Context(), "/registry/pods/a/other", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := MigrateToEtcd(t.Context(), back, etcdConfig, false); err == nil ||
		!strings.Contains(err.Error(), "/registry/pods/a/other") {
		t.Errorf("MigrateToEtcd over another cluster: got %v, want an error that names the key", err)
	}
}

// TestMigrateKilled kills migrations half-way, in both directions: the next one comes to the end, and nothing is left.
func TestMigrateKilled(t *testing.T) {
	servers := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	remote, err := etcd.Open(t.Context(), etcd.Options{Servers: servers})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remote.Close() }()
	dir, err := datadir.Dir(filepath.Join(t.TempDir(), "data")).Prepare()
	if err != nil {
		t.Fatal(err)
	}
	const n = 4000
	err = embed.Import(t.Context(), embed.Options{Dir: dir.Sub("store")}, func(
		put func(store.KV) error,
	) (int64, error) {
		for i := range n {
			kv := store.KV{
				Key:      fmt.Sprintf("/registry/configmaps/a/%05d", i),
				Value:    make([]byte, 500),
				Revision: int64(i + 2),
			}
			if err := put(kv); err != nil {
				return 0, err
			}
		}
		return n + 2, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	count := func(s store.Store) int {
		keys := 0
		if _, err := backup.Walk(t.Context(), s, "/registry/", func(store.KV) error {
			keys++
			return nil
		}); err != nil {
			t.Error(err)
		}
		return keys
	}
	for _, enough := range []int{1, n / 4, n / 2} {
		p := spawn(t, "to-etcd", dir, servers...)
		waittest.Until(t, "keys in etcd", func() bool { return count(remote) >= enough })
		kill(p)
	}
	t.Logf("%d of %d keys were copied when it was killed last", count(remote), n)
	if got, err := MigrateToEtcd(t.Context(), dir, storage.Config{Servers: servers}, false); err != nil || got != n ||
		count(remote) != n {
		t.Fatalf("MigrateToEtcd after it was killed: %d, %v; etcd holds %d; want %d", got, err, count(remote), n)
	}
	back, err := datadir.Dir(filepath.Join(t.TempDir(), "back")).Prepare()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p := spawn(t, "to-embedded", back, servers...)
		waittest.Until(t, "a store in the making", func() bool {
			return datadir.Exists(back.Sub(datadir.MigratingStore)) || datadir.Exists(back.Sub("store"))
		})
		kill(p)
		if datadir.Exists(back.Sub("store")) { // it was faster: complete, then
			embedded(t, back, func(s store.Store) {
				if got := count(s); got != n {
					t.Errorf("a killed migration left a store of %d keys, want %d or no store", got, n)
				}
			})
			if err := os.RemoveAll(back.Sub("store")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := MigrateFromEtcd(t.Context(), back, storage.Config{Servers: servers}); err != nil || got != n {
		t.Fatalf("MigrateFromEtcd after it was killed: %d, %v; want %d", got, err, n)
	}
	embedded(t, back, func(s store.Store) {
		if got := count(s); got != n {
			t.Errorf("the store holds %d keys, want %d", got, n)
		}
	})
	if datadir.Exists(back.Sub(datadir.MigratingStore)) {
		t.Error("store.migrating is left")
	}
}

// TestMigrateKilledBeforeItsEnd: a migration that was killed when its copy was complete, but before the directory used
// the other store, or before the old one was put aside, is completed by the same command, in both directions, and takes
// nothing back that the cluster has written since.
func TestMigrateKilledBeforeItsEnd(t *testing.T) {
	servers := etcdtest.URLs(etcdtest.Start(t, 1, nil))
	etcdConfig := storage.Config{Servers: servers}
	remote, err := etcd.Open(t.Context(), etcd.Options{Servers: servers})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = remote.Close() }()
	dir, err := datadir.Dir(filepath.Join(t.TempDir(), "data")).Prepare()
	if err != nil {
		t.Fatal(err)
	}
	const object = "/registry/configmaps/a/b"
	embedded(t, dir, func(s store.Store) {
		if _, err := s.Create(t.Context(), object, []byte("old")); err != nil {
			t.Fatal(err)
		}
	})
	inEtcd := func(what, want string) {
		t.Helper()
		if got, _, err := remote.Get(t.Context(), object, 0); err != nil || string(got.Value) != want {
			t.Errorf("%s: etcd has %q, %v, want %q", what, got.Value, err, want)
		}
	}
	copied, err := remote.Create(t.Context(), object, []byte("old"))
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.UseStore(datadir.EtcdStore(remote.Cluster())); err != nil { // it is killed here; the cluster runs
		t.Fatal(err)
	}
	if _, err := remote.Update(t.Context(), object, []byte("new"), copied.Revision); err != nil {
		t.Fatal(err)
	}
	if n, err := MigrateToEtcd(t.Context(), dir, etcdConfig, false); err != nil || n != 1 {
		t.Errorf("MigrateToEtcd again: %d, %v", n, err)
	}
	inEtcd("after MigrateToEtcd again", "new")
	if datadir.Exists(dir.Sub("store")) || len(dir.MigratedStores()) != 1 {
		t.Errorf("the embedded store is not put aside: %q", dir.MigratedStores())
	}

	if n, err := MigrateFromEtcd(t.Context(), dir, etcdConfig); err != nil || n != 1 {
		t.Fatalf("MigrateFromEtcd: %d, %v", n, err)
	}
	if err := dir.UseStore(datadir.EtcdStore(remote.Cluster())); err != nil { // as if it had been killed before
		t.Fatal(err)
	}
	if n, err := MigrateFromEtcd(t.Context(), dir, etcdConfig); err != nil || n != 1 {
		t.Fatalf("MigrateFromEtcd again: %d, %v", n, err)
	}
	embedded(t, dir, func(s store.Store) {
		if got := stored(t, s)[object]; got != "new" {
			t.Errorf("after MigrateFromEtcd again: the store has %q", got)
		}
	})
	if used, err := dir.StoreUsed(); err != nil || used != datadir.EmbeddedStore {
		t.Errorf("the directory uses %q, %v", used, err)
	}
}
