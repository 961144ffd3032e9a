// SPDX-License-Identifier: Apache-2.0

package etcdfile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"keelson/store"
)

// snapshot is a whole snapshot of n keys.
func snapshot(t testing.TB, n int) []byte {
	t.Helper()
	file, rev, size, err := Make(t.TempDir(), func(put func(store.KV) error) (int64, error) {
		for i := range n {
			kv := store.KV{
				Key:      fmt.Sprintf("/registry/k%05d", i),
				Value:    fmt.Append(nil, i),
				Revision: int64(2*n - i),
				Created:  7,
				Version:  int64(i),
			}
			if err := put(kv); err != nil {
				return 0, err
			}
		}
		return int64(3 * n), put(store.KV{
			Key:      "elsewhere",
			Revision: int64(2 * n),
			Created:  5,
			Version:  2,
		})
	})
	if err != nil || rev != int64(3*n) {
		t.Fatalf("Make: %d, %v", rev, err)
	}
	b, err := io.ReadAll(io.LimitReader(file, size))
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

func read(t testing.TB, b []byte) (keys []store.KV, rev int64, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	rev, err = Read(path, "/registry/", func(kv store.KV) error {
		kv.Value = bytes.Clone(kv.Value)
		keys = append(keys, kv)
		return nil
	})
	return keys, rev, err
}

func TestRoundTrip(t *testing.T) {
	const n = batch + 100
	b := snapshot(t, n)
	if !Is(b) || Is([]byte("KEELSON BACKUP 1\n and so on")) || Is(nil) {
		t.Error("Is takes the wrong files")
	}
	keys, rev, err := read(t, b)
	if err != nil || rev != 3*n || len(keys) != n {
		t.Fatalf("Read: %d keys at %d, %v; want %d at %d", len(keys), rev, err, n, 3*n)
	}
	seen := map[string]bool{}
	for _, kv := range keys {
		var i int
		if _, err := fmt.Sscanf(kv.Key, "/registry/k%05d", &i); err != nil || string(kv.Value) != fmt.Sprint(i) ||
			kv.Revision != int64(2*n-i) {
			t.Errorf("got %s=%s@%d", kv.Key, kv.Value, kv.Revision)
		}
		// A key of which no version is known is shown as created by its last write.
		if i == 0 && (kv.Created != kv.Revision || kv.Version != 1) ||
			i > 0 && (kv.Created != 7 || kv.Version != int64(i)) {
			t.Errorf("%s: created at %d, version %d", kv.Key, kv.Created, kv.Version)
		}
		seen[kv.Key] = true
	}
	if len(seen) != n {
		t.Errorf("%d different keys, want %d", len(seen), n)
	}
}

// TestHistory reads what a member leaves that has not compacted: several versions of a key, and deletions.
func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{db: db}
	for _, kv := range []store.KV{
		{Key: "/registry/a", Value: []byte("old"), Revision: 2},
		{
			Key:      "/registry/a",
			Value:    []byte("new"),
			Revision: 3,
		},
		{Key: "/registry/b", Value: []byte("gone"), Revision: 3},
		{
			Key:      "/registry/c",
			Value:    []byte("again"),
			Revision: 5,
		},
	} {
		if err := w.put(kv); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(w.flush(), db.Update(func(tx *bbolt.Tx) error {
		gone := func(key string) []byte { return append([]byte{0x0a, byte(len(key))}, key...) } // KeyValue{key}
		return errors.Join(
			tx.Bucket(bucketKey).Put(append(putRevision(4, 0), 't'), gone("/registry/b")),
			tx.Bucket(bucketKey).Put(append(putRevision(4, 1), 't'), gone("/registry/c")))
	}), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	keys, rev, err := read(t, append(b, sum[:]...))
	want := []store.KV{{
		Key:      "/registry/a",
		Value:    []byte("new"),
		Revision: 3,
		Created:  3,
		Version:  1,
	}, {
		Key:      "/registry/c",
		Value:    []byte("again"),
		Revision: 5,
		Created:  5,
		Version:  1,
	}}
	if err != nil || rev != 5 || fmt.Sprint(keys) != fmt.Sprint(want) {
		t.Errorf("Read: got %v at %d, %v; want %v at 5", keys, rev, err, want)
	}
}

func TestDamage(t *testing.T) {
	good := snapshot(t, 10)
	flipped := bytes.Clone(good)
	flipped[5000] ^= 1
	other := sha256.Sum256(good[:4096])
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"cut":         {good[:len(good)-100], "does not end in a checksum"},
		"cut by 512":  {good[:len(good)-512], "the checksum is not"},
		"a flip":      {flipped, "the checksum is not"},
		"empty":       {nil, "does not end in a checksum"},
		"half a file": {append(bytes.Clone(good[:4096]), other[:]...), "database"},
	} {
		if _, _, err := read(t, c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// FuzzEntry: a record, whatever is in it, is read or refused; one that is written comes back.
func FuzzEntry(f *testing.F) {
	f.Add(putRevision(7, 0), []byte("\x0a\x0b/registry/a\x2a\x01v"))
	f.Add(append(putRevision(8, 1), 't'), []byte("\x0a\x0b/registry/a"))
	f.Add([]byte("short"), []byte("\x0a\xff"))
	f.Fuzz(func(t *testing.T, at, v []byte) {
		kv, ok, err := entry(at, v, "/registry/")
		if ok && (err != nil || !strings.HasPrefix(kv.Key, "/registry/")) {
			t.Errorf("%x %x: got %+v, %v", at, v, kv, err)
		}
	})
}
