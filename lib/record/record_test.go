// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func read(path string) (got int, damage, err error) {
	damage, err = Read(path, func(b []byte) error { return json.Unmarshal(b, &got) })
	return got, damage, err
}

func TestRead(t *testing.T) {
	for name, tc := range map[string]struct {
		hurt    func(t *testing.T, path string)
		damaged bool
		lost    bool
	}{
		"whole":       {hurt: func(*testing.T, string) {}},
		"no copy":     {hurt: func(t *testing.T, p string) { remove(t, p+copySuffix) }},
		"empty":       {hurt: func(t *testing.T, p string) { write(t, p, "") }, damaged: true},
		"other bytes": {hurt: func(t *testing.T, p string) { write(t, p, "{{{") }, damaged: true},
		"gone":        {hurt: remove, damaged: true},
		"a directory": {
			hurt: func(t *testing.T, p string) {
				remove(t, p)
				mkdir(t, p)
			},
			damaged: true,
		},
		"damaged copy": {hurt: func(t *testing.T, p string) { write(t, p+copySuffix, "}") }},
		"both damaged": {
			hurt: func(t *testing.T, p string) {
				write(t, p, "")
				write(t, p+copySuffix, "")
			},
			lost: true,
		},
		"removed": {
			hurt: func(t *testing.T, p string) {
				remove(t, p)
				remove(t, p+copySuffix)
			},
			lost: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "record.json")
			if err := errors.Join(Write(path, []byte("1")), Write(path, []byte("7"))); err != nil {
				t.Fatal(err)
			}
			tc.hurt(t, path)
			got, damage, err := read(path)
			if tc.lost != (err != nil) || tc.damaged != (damage != nil) || err == nil && got != 7 {
				t.Errorf("got %d, damage %v, error %v, want 7, damage %v, lost %v", got, damage, err, tc.damaged,
					tc.lost)
			}
			if err := Remove(path); name != "a directory" && err != nil {
				t.Errorf("remove: %v", err)
			}
			if _, _, err := read(path); name != "a directory" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after it was removed: got %v", err)
			}
		})
	}
}

func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	aside := filepath.Join(dir, "damaged")
	for i := range maxAside + 5 {
		path := filepath.Join(dir, "record.json")
		if err := Write(path, []byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		at, err := SetAside(path, aside)
		if err != nil {
			t.Fatal(err)
		}
		if got, damage, err := read(path); got != i || damage == nil || err != nil {
			t.Errorf("record %d: got %d, damage %v, %v, want it from its copy", i, got, damage, err)
		}
		if got, _, err := read(at); got != i || err != nil {
			t.Errorf("what was set aside: got %d, %v, want %d", got, err, i)
		}
		if _, err := SetAside(path, aside); err != nil {
			t.Errorf("a record that is gone: %v", err)
		}
	}
	left, err := os.ReadDir(aside)
	if err != nil || len(left) != maxAside {
		t.Errorf("kept: got %d files, %v, want %d", len(left), err, maxAside)
	}
}

func write(t *testing.T, path, body string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}
