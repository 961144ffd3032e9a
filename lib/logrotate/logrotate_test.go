// SPDX-License-Identifier: Apache-2.0

package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestListAndPrune(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	for _, n := range []string{
		"", ".20260101-000002", ".20260101-000001.gz", ".20260101-000003", ".20260101-000003.gz",
		".20260101-000004.tmp", ".20260101-000005",
	} {
		put(t, log+n, "x")
	}
	put(t, filepath.Join(dir, "0.logs"), "another file")
	put(t, filepath.Join(dir, "10.log.20260101-000001"), "another log")
	got, err := List(log)
	want := []File{
		{log + ".20260101-000001", true},
		{log + ".20260101-000002", false},
		{log + ".20260101-000003", true},
		{log + ".20260101-000005", false},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("List: got %v, %v; want %v", got, err, want)
	}
	left, err := Prune(log, 2)
	if err != nil || !slices.Equal(left, want[2:]) {
		t.Errorf("Prune: got %v, %v; want %v", left, err, want[2:])
	}
	wantNames := []string{
		"0.log", "0.log.20260101-000003.gz", "0.log.20260101-000005", "0.logs", "10.log.20260101-000001",
	}
	if n := names(t, dir); !slices.Equal(n, wantNames) {
		t.Errorf("after Prune: got %v, want %v", n, wantNames)
	}
	if got, err := List(filepath.Join(dir, "none", "0.log")); err != nil || len(got) != 0 {
		t.Errorf("List without a directory: got %v, %v", got, err)
	}
}

func TestMoveAsideNamesGrow(t *testing.T) {
	log := filepath.Join(t.TempDir(), "0.log")
	at := time.Date(2026, 1, 1, 0, 0, 58, 0, time.UTC)
	var got []string
	for i := range 4 {
		put(t, log, "x")
		older, err := List(log)
		if err != nil {
			t.Fatal(err)
		}
		now := at
		if i == 3 {
			now = at.Add(-time.Hour) // the clock was set back
		}
		f, err := MoveAside(log, older, now)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimPrefix(f.Name, log+"."))
	}
	if want := []string{"20260101-000058", "20260101-000059", "20260101-000100", "20260101-000101"}; !slices.Equal(got,
		want) {
		t.Errorf("names: got %v, want %v", got, want)
	}
}

func TestCompress(t *testing.T) {
	dir := t.TempDir()
	file := File{Name: filepath.Join(dir, "0.log.20260101-000001")}
	put(t, file.Name, "one\ntwo\n")
	then := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	if err := os.Chtimes(file.Name, then, then); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Compress(ctx, file, &sync.Mutex{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Compress with an ended context: %v", err)
	}
	if n := names(t, dir); !slices.Equal(n, []string{"0.log.20260101-000001"}) {
		t.Errorf("after an abandoned Compress: %v", n)
	}
	if err := Compress(t.Context(), file, &sync.Mutex{}); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(file.Name + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	st, err := in.Stat()
	if err != nil || !st.ModTime().Equal(then) || st.Mode().Perm() != 0o640 {
		t.Errorf("compressed file: %v, %v; want the time %v and mode of the original", st, err, then)
	}
	gz, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(gz); err != nil || string(b) != "one\ntwo\n" {
		t.Errorf("compressed text: %q, %v", b, err)
	}
	if n := names(t, dir); !slices.Equal(n, []string{"0.log.20260101-000001.gz"}) {
		t.Errorf("after Compress: %v", n)
	}
}

// removing removes a file when somebody takes it as a lock.
type removing struct{ path string }

func (r removing) Lock()   { _ = os.Remove(r.path) }
func (r removing) Unlock() {}

// TestCompressDoesNotReviveWhatWasRemoved: the file is pruned while it is compressed.
func TestCompressDoesNotReviveWhatWasRemoved(t *testing.T) {
	dir := t.TempDir()
	f := File{Name: filepath.Join(dir, "0.log.20260101-000001")}
	put(t, f.Name, "x")
	if err := Compress(t.Context(), f, removing{f.Name}); err != nil {
		t.Fatal(err)
	}
	if n := names(t, dir); len(n) != 0 {
		t.Errorf("left: %v, want nothing", n)
	}
}
