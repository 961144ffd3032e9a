// SPDX-License-Identifier: Apache-2.0

package builtin_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"keelson/runtime/builtin"
	"keelson/runtime/image"
	"keelson/runtime/image/manifest"
)

func TestImage(t *testing.T) {
	program := bytes.Repeat([]byte("program "), 1000)
	loads := 0
	load := func() ([]byte, error) {
		loads++
		return program, nil
	}
	b := builtin.New(load, "stamp", "v1.37.2+keelson")
	if want := []string{"keelson.local/hello:latest", "keelson.local/hello:v1.37.2-keelson"}; !slices.Equal(b.Tags,
		want) {
		t.Errorf("tags: got %q, want %q", b.Tags, want)
	}
	first, err := b.Load()
	if err != nil {
		t.Fatal(err)
	}
	id := first.ID
	if again, err := builtin.New(load, "", "other").Load(); err != nil || again.ID != id ||
		again.DiffID != first.DiffID {
		t.Errorf("the same program gave %+v and %+v, %v", first, again, err)
	}
	dir := t.TempDir()
	store, err := image.Open(image.Config{Dir: dir, Builtin: b})
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{
		"keelson.local/hello", "keelson.local/hello:latest", "keelson.local/hello:v1.37.2-keelson", id, id[7:17],
	} {
		if img, ok := store.Get(ref); !ok || img.ID != id || !img.Pinned {
			t.Errorf("Get(%q): got %+v, %v", ref, img, ok)
		}
	}
	img, err := store.Pull(t.Context(), image.Request{Ref: "keelson.local/hello"})
	if err != nil {
		t.Fatal(err)
	}
	fs := store.LayerDir(img.Layers[0].ChainID)
	got, err := os.ReadFile(filepath.Join(fs, "hello"))
	if err != nil || !bytes.Equal(got, program) {
		t.Errorf("/hello: %d bytes, %v; want the program", len(got), err)
	}
	if l, err := os.Readlink(filepath.Join(fs, "bin/sh")); err != nil || l != "../hello" {
		t.Errorf("/bin/sh: got %q, %v", l, err)
	}
	if fi, err := os.Stat(filepath.Join(fs, "hello")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("/hello: %v, %v", fi.Mode(), err)
	}
	if err := store.Remove(t.Context(), "keelson.local/hello"); !errors.Is(err, image.ErrBuiltin) {
		t.Errorf("Remove: got %v, want ErrBuiltin", err)
	}
	if _, err := store.Pull(t.Context(), image.Request{Ref: "keelson.local/other:v1"}); !errors.Is(err,
		manifest.ErrNotFound) {
		t.Errorf("Pull of another local name: got %v, want ErrNotFound", err)
	}
	if n := len(store.List()); n != 1 {
		t.Errorf("List: got %d images, want 1", n)
	}
	other, err := image.Open(image.Config{Dir: dir}) // a process that has no such image must not collect its layer
	if err != nil {
		t.Fatal(err)
	}
	if err := other.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fs); err != nil {
		t.Errorf("the layer was collected by another process: %v", err)
	}
}

func TestDigestsAreRemembered(t *testing.T) {
	program := []byte("one")
	loads := 0
	dir := t.TempDir()
	stamp := "1"
	open := func() *image.Store {
		b := builtin.New(func() ([]byte, error) {
			loads++
			return program, nil
		}, stamp, "v1")
		s, err := image.Open(image.Config{Dir: dir, Builtin: b})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first, err := open().Pull(t.Context(), image.Request{Ref: "keelson.local/hello"})
	if err != nil {
		t.Fatal(err)
	}
	loads = 0
	if img, err := open().Pull(t.Context(), image.Request{Ref: "keelson.local/hello"}); err != nil ||
		img.ID != first.ID || loads != 0 {
		t.Errorf("second start: got %s, %v after %d loads, want %s without any", img.ID, err, loads, first.ID)
	}
	program = []byte("two")
	stamp = "2"
	s := open()
	img, ok := s.Get("keelson.local/hello")
	if !ok || img.ID == first.ID {
		t.Errorf("new program: got %s, %v", img.ID, ok)
	}
	if _, err := s.Ensure(t.Context(), img); err != nil {
		t.Fatal(err)
	}
	if err := s.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "layers")); err != nil || len(left) != 1 {
		t.Errorf("layers: got %v, %v, want the new program's alone", left, err)
	}
}

func TestNoProgram(t *testing.T) {
	missing := errors.New("run make")
	b := builtin.New(func() ([]byte, error) { return nil, missing }, "", "v1")
	s, err := image.Open(image.Config{Dir: t.TempDir(), Builtin: b})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), image.Request{Ref: "keelson.local/hello"}); !errors.Is(err, missing) {
		t.Errorf("Pull: got %v, want %v", err, missing)
	}
	if _, ok := s.Get("keelson.local/hello"); ok || len(s.List()) > 0 {
		t.Error("an image without a program is there")
	}
}

// BenchmarkFirstUse is what the first pod on hello waits for on an empty data directory, BenchmarkLaterStart on a used
// one.
func BenchmarkFirstUse(b *testing.B) { benchmark(b, func() string { return b.TempDir() }) }

func BenchmarkLaterStart(b *testing.B) {
	dir := b.TempDir()
	benchmark(b, func() string { return dir })
}

func benchmark(b *testing.B, dir func() string) {
	program := bytes.Repeat([]byte("program "), 3<<20/8)
	built := builtin.New(func() ([]byte, error) { return program, nil }, "stamp", "v1")
	for b.Loop() {
		b.StopTimer()
		d := dir()
		b.StartTimer()
		s, err := image.Open(image.Config{Dir: d, Builtin: built})
		if err != nil {
			b.Fatal(err)
		}
		img, _ := s.Get("keelson.local/hello")
		if _, err := s.Ensure(b.Context(), img); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLinks: the image has a link for each tool of its program, and none that leads nowhere. The program is a module of
// its own, so its table is read from the source.
func TestLinks(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../images/hello/tools.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"sh"}
	ast.Inspect(file, func(n ast.Node) bool {
		if decl, ok := n.(*ast.FuncDecl); ok && decl.Name.Name != "tools" {
			return false
		}
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			name, err := strconv.Unquote(pair.Key.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			if name != "exit" { // for containers that end at once: `hello exit 3`
				want = append(want, name)
			}
		}
		return true
	})
	img, err := builtin.New(func() ([]byte, error) { return []byte("program"), nil }, "", "v1").Load()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := img.Layer()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if path.Dir(h.Name) == "bin" && h.Typeflag == tar.TypeSymlink && h.Linkname == "../hello" {
			got = append(got, path.Base(h.Name))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 50 || !slices.Equal(got, want) {
		t.Errorf("links in /bin: got %q, want %q", got, want)
	}
}
