// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/store"
)

func TestImport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	want := []store.KV{{Key: "/a", Value: []byte("1"), Revision: 5}, {Key: "/b", Value: []byte{}, Revision: 3}}
	fill := func(rev int64) func(put func(store.KV) error) (int64, error) {
		return func(put func(store.KV) error) (int64, error) {
			for _, kv := range want {
				if err := put(kv); err != nil {
					return 0, err
				}
			}
			return rev, nil
		}
	}
	if err := Import(t.Context(), Options{Dir: dir + "-bad"}, fill(4)); err == nil {
		t.Error("a key above the store's revision: got no error")
	}
	if err := Import(t.Context(), Options{Dir: dir}, fill(9)); err != nil {
		t.Fatal(err)
	}
	if err := Import(t.Context(), Options{Dir: dir}, fill(9)); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("Import into a store: got %v, want an error that names it", err)
	}
	st := open(t, Options{Dir: dir})
	page, err := st.List(t.Context(), store.Range{Prefix: "/"})
	if err != nil || page.Revision != 9 || fmt.Sprint(page.Items) != fmt.Sprint(want) {
		t.Errorf("List: got %v at %d, %v; want %v at 9", page.Items, page.Revision, err, want)
	}
	if _, _, err := st.Get(t.Context(), "/a", 8); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("Get before the import: got %v, want ErrCompacted", err)
	}
	if _, err := st.Watch(t.Context(), "/", 8); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("Watch from before the import: got %v, want ErrCompacted", err)
	}
	w, err := st.Update(t.Context(), "/a", []byte("2"), 5)
	if err != nil || w.Revision != 10 {
		t.Errorf("Update: got %d, %v; want 10", w.Revision, err)
	}
	if err := st.Compact(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if _, typ, err := st.version("/a", 9); typ != 0 || err != nil {
		t.Errorf("the imported version was not forgotten: type %d, %v", typ, err)
	}
}

// TestDamagedFiles flips a byte in each file of a closed store: opening or reading everything must fail with an error
// that names the file. What was confirmed may never be missing without an error.
func TestDamagedFiles(t *testing.T) {
	for _, pattern := range []string{"*.sst", "*.log", "MANIFEST-*"} {
		for part := range 6 {
			t.Run(fmt.Sprintf("%s %d", pattern, part), func(t *testing.T) { damagedFile(t, pattern, part) })
		}
	}
}

func damagedFile(t *testing.T, pattern string, part int) {
	dir := t.TempDir()
	st, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	for i := range n {
		if _, err := st.Create(t.Context(), fmt.Sprintf("/k%02d", i),
			[]byte(strings.Repeat(fmt.Sprint(i), 2000))); err != nil {
			t.Fatal(err)
		}
		if i == n/2 {
			if err := st.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	name := names[0]
	for _, other := range names { // the fullest
		a, aerr := os.Stat(other)
		b, berr := os.Stat(name)
		if aerr == nil && berr == nil && a.Size() > b.Size() {
			name = other
		}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := len(b) * (2*part + 1) / 13
	b[at] ^= 0x55
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	err = readAll(t, dir, n)
	if err == nil {
		return // nothing was missing: the byte was padding or is written twice
	}
	t.Log(err)
	if !strings.Contains(err.Error(), strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))) {
		t.Errorf("byte %d of %s: the error does not name the file: %v", at, name, err)
	}
}

// readAll fails when the store in dir cannot be opened or read; that a key is missing without an error fails the test.
func readAll(t *testing.T, dir string, n int) error {
	s, err := Open(Options{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	page, err := s.List(t.Context(), store.Range{Prefix: "/"})
	if err != nil {
		return err
	}
	if len(page.Items) != n {
		t.Errorf("%d of %d keys are there, and no error", len(page.Items), n)
	}
	for i, kv := range page.Items {
		if want := strings.Repeat(fmt.Sprint(i), 2000); string(kv.Value) != want {
			t.Errorf("%s: got %.20q..., want %.20q...", kv.Key, kv.Value, want)
		}
	}
	return nil
}
