// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"keelson/apiserver/options"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/cluster/storage"
	"keelson/pki"
	"keelson/store"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/etcd/etcdtest"
)

// onEtcd starts a cluster that uses dir and servers; it is nil if the start was refused.
func onEtcd(t *testing.T, dir datadir.Dir, servers ...string) error {
	t.Helper()
	cfg := config(string(dir))
	cfg.Etcd.Servers = servers
	c, err := New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := c.Run(ctx, cancel); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func refused(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: got %v, want a refusal with %q", what, err, w)
			return
		}
	}
}

func entries(t *testing.T, dir datadir.Dir) []string {
	t.Helper()
	all, err := os.ReadDir(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// TestStoreStays: a cluster is started with another store than before, in every way; each is refused before anything is
// written to the other store.
func TestStoreStays(t *testing.T) {
	one := etcdtest.URLs(etcdtest.Start(t, 1, nil))[0]
	two := etcdtest.URLs(etcdtest.Start(t, 1, nil))[0]
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	if err := onEtcd(t, dir, one); err != nil {
		t.Fatal(err)
	}
	before := entries(t, dir)
	refused(t, "without --etcd-servers", onEtcd(t, dir), "give --etcd-servers")
	refused(t, "another etcd", onEtcd(t, dir, two), "correct --etcd-servers")
	if got := entries(t, dir); !slices.Equal(got, before) {
		t.Errorf("refused starts have left %v, before there was %v", got, before)
	}
	other, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{two}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if got := stored(t, other); len(got) != 0 {
		t.Errorf("the other etcd has got %d keys", len(got))
	}
	if err := onEtcd(t, dir, one); err != nil {
		t.Errorf("the same etcd again: %v", err)
	}
	if n, err := maintenance.MigrateFromEtcd(t.Context(), dir, storage.Config{Servers: []string{one}}); err != nil || n < 10 {
		t.Fatalf("MigrateFromEtcd: %d, %v", n, err)
	}
	refused(t, "etcd after a migration from it", onEtcd(t, dir, one), "its embedded store")
	if err := onEtcd(t, dir); err != nil {
		t.Errorf("the embedded store after a migration to it: %v", err)
	}
	if _, err := maintenance.MigrateToEtcd(t.Context(), dir, storage.Config{Servers: []string{two}}, false); err != nil {
		t.Fatalf("MigrateToEtcd: %v", err)
	}
	refused(t, "the embedded store after a migration from it", onEtcd(t, dir), "give --etcd-servers")
	refused(t, "the first etcd again", onEtcd(t, dir, one), "correct --etcd-servers")
	if err := onEtcd(t, dir, two); err != nil {
		t.Errorf("etcd after a migration to it: %v", err)
	}
	keyless := datadir.Dir(filepath.Join(t.TempDir(), "keyless"))
	if _, err := maintenance.MigrateFromEtcd(t.Context(), keyless, storage.Config{Servers: []string{two}}); err != nil {
		t.Fatalf("MigrateFromEtcd into an empty directory: %v", err)
	}
	if err := onEtcd(t, keyless); err != nil {
		t.Errorf("a start with what came from etcd, where no keys were: %v", err)
	}
	if len(dir.MigratedStores()) != 1 || datadir.Exists(dir.Sub("store")) {
		t.Errorf("after the migration the directory holds %v, want the store put aside", entries(t, dir))
	}
	if err := dir.Erase(); err != nil || datadir.Exists(string(dir)) {
		t.Errorf("purge: %v, and %v is left", err, entries(t, dir))
	}
}

// TestServersShareKeys: a second server on an etcd needs the keys of the first.
func TestServersShareKeys(t *testing.T) {
	url := etcdtest.URLs(etcdtest.Start(t, 1, nil))[0]
	first := datadir.Dir(filepath.Join(t.TempDir(), "first"))
	if err := onEtcd(t, first, url); err != nil {
		t.Fatal(err)
	}
	second := datadir.Dir(filepath.Join(t.TempDir(), "second"))
	for range 2 { // the first refusal must not make it a member
		refused(t, "other keys", onEtcd(t, second, url), `another key "ca"`, "copy pki/")
		if datadir.Exists(string(second)) {
			t.Fatalf("the refused server has left %v", entries(t, second))
		}
	}
	if err := os.CopyFS(second.Sub("pki"), os.DirFS(first.Sub("pki"))); err != nil {
		t.Fatal(err)
	}
	if err := onEtcd(t, second, url); err != nil {
		t.Errorf("with the same keys: %v", err)
	}
	// a key that is replaced on purpose, as docs/store.md says
	replaceTokenKey(t, first)
	third := datadir.Dir(filepath.Join(t.TempDir(), "third"))
	if err := os.CopyFS(third.Sub("pki"), os.DirFS(first.Sub("pki"))); err != nil {
		t.Fatal(err)
	}
	refused(t, "a key that no member has recorded", onEtcd(t, third, url), `another key "sa"`)
	if err := onEtcd(t, first, url); err != nil {
		t.Errorf("a member with a new key: %v", err)
	}
	if err := errors.Join(os.MkdirAll(string(third), 0o700),
		os.CopyFS(third.Sub("pki"), os.DirFS(first.Sub("pki")))); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if err := onEtcd(t, third, url); err != nil {
		t.Errorf("a third server with the new key: %v", err)
	}
}

func replaceTokenKey(t *testing.T, dir datadir.Dir) {
	t.Helper()
	list := dir.Sub("pki/" + credentials.FingerprintsFile)
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, credentials.TokenIdentity+" ") {
			lines = append(lines, line)
		}
	}
	if err := errors.Join(os.Remove(dir.Sub("pki/sa.key")),
		os.WriteFile(list, []byte(strings.Join(lines, "")), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.ServiceAccountKey(dir.Sub("pki")); err != nil {
		t.Fatal(err)
	}
}

// TestFingerprintsOfKeys: the flags for keys of service-account tokens count, and a store that is full does not keep a
// server from starting.
func TestFingerprintsOfKeys(t *testing.T) {
	dir := madeDir(t)
	other := madeDir(t)
	k, err := openKeysOf(config(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := pki.TokenSigner(other.Sub("pki/sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sa.pub")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := k.Fingerprints(&options.ServiceAccountTokens{KeyFiles: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(dir.Sub("pki/" + credentials.FingerprintsFile))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(other.Sub("pki/" + credentials.FingerprintsFile))
	if err != nil {
		t.Fatal(err)
	}
	want := credentials.Fingerprints{}
	for line := range credentials.ParseStored(b) {
		if strings.HasPrefix(line, "ca ") || strings.HasPrefix(line, "sa ") {
			want[line] = true
		}
	}
	for line := range credentials.ParseStored(theirs) {
		if strings.HasPrefix(line, "sa ") {
			want[line] = true
		}
	}
	if got := string(own.Bytes()); got != string(want.Bytes()) || len(own) != 3 {
		t.Errorf("fingerprints: got %q, want %q", got, want.Bytes())
	}
	full := fullStore{away: &store.UnavailableError{Cause: errors.New("no space left on device"), Full: true}}
	if err := credentials.KeepFingerprints(t.Context(), full, false, credentials.ServerFingerprints{Own: own}, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a full disk: %v", err)
	}
}

// fullStore holds nothing and takes no writes.
type fullStore struct {
	store.Store
	away error
}

func (f fullStore) Get(context.Context, string, int64) (store.KV, int64, error) {
	return store.KV{}, 1, store.ErrNotFound
}

func (f fullStore) Create(context.Context, string, []byte) (store.Written, error) {
	return store.Written{}, f.away
}

// TestFingerprintsOfServersAtOnce: of servers with different keys that come to an empty store together one stays.
func TestFingerprintsOfServersAtOnce(t *testing.T) {
	st, err := embed.Open(embed.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	const n = 8
	results := make(chan error, n)
	for i := range n {
		go func() { // ends with its one call
			own := credentials.Fingerprints{fmt.Sprintf("ca sha256:%d", i): true}
			results <- credentials.KeepFingerprints(context.Background(), st, false, credentials.ServerFingerprints{Own: own}, slog.New(slog.DiscardHandler))
		}()
	}
	stayed := 0
	for range n {
		select {
		case err := <-results:
			if err == nil {
				stayed++
			}
		case <-time.After(time.Minute):
			t.Fatal("KeepFingerprints does not return")
		}
	}
	if stayed != 1 {
		t.Errorf("%d servers with keys of their own stayed, want 1", stayed)
	}
}

// TestRestoreOfFingerprints: a backup without keys gets new ones; with keys they are compared.
func TestRestoreOfFingerprints(t *testing.T) {
	source := datadir.Dir(filepath.Join(t.TempDir(), "source"))
	if err := onEtcd(t, source); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	if _, err := maintenance.BackupOffline(t.Context(), source, whole, false); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(source.Sub("pki")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(source.Sub("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	bare := filepath.Join(t.TempDir(), "bare")
	if _, err := maintenance.BackupOffline(t.Context(), source, bare, false); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{whole, bare} {
		dir := datadir.Dir(filepath.Join(t.TempDir(), "restored"))
		if _, err := maintenance.Restore(t.Context(), dir, path); err != nil {
			t.Fatal(err)
		}
		if err := onEtcd(t, dir); err != nil {
			t.Errorf("start of %s: %v", filepath.Base(path), err)
		}
	}
	dir := datadir.Dir(filepath.Join(t.TempDir(), "mixed"))
	if _, err := maintenance.Restore(t.Context(), dir, whole); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(dir.Sub("pki")),
		os.CopyFS(dir.Sub("pki"), os.DirFS(madeDir(t).Sub("pki")))); err != nil {
		t.Fatal(err)
	}
	refused(t, "objects of one cluster with the keys of another", onEtcd(t, dir), `another key "ca"`)
}
