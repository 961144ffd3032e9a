// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"keelson/runtime/image"
	"keelson/runtime/image/manifest"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts overlays")
	}
}

// archive is a docker archive of one image with a layer per element; an element is a list of "name" and "content".
func archive(t testing.TB, tag string, layers ...[]string) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	put := func(w *tar.Writer, name string, b []byte) {
		h := &tar.Header{
			Name:     name,
			Size:     int64(len(b)),
			Mode:     0o644,
			Typeflag: tar.TypeReg,
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	config := ocispec.Image{RootFS: ocispec.RootFS{Type: "layers"}}
	var files []string
	for i, l := range layers {
		var b bytes.Buffer
		lw := tar.NewWriter(&b)
		for j := 0; j+1 < len(l); j += 2 {
			put(lw, l[j], []byte(l[j+1]))
		}
		if err := lw.Close(); err != nil {
			t.Fatal(err)
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(b.Bytes()))
		files = append(files, fmt.Sprintf("%d.tar", i))
		put(writer, files[i], b.Bytes())
	}
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	put(writer, "config.json", raw)
	manifest, err := json.Marshal([]map[string]any{
		{"Config": "config.json", "RepoTags": []string{tag}, "Layers": files},
	})
	if err != nil {
		t.Fatal(err)
	}
	put(writer, "manifest.json", manifest)
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// setup opens both stores in dir, and checks at the test's end that no mount is left.
func setup(t testing.TB, dir string) (*Store, *image.Store) {
	t.Helper()
	images, err := image.Open(image.Config{Dir: filepath.Join(dir, "images")})
	if err != nil {
		t.Fatal(err)
	}
	store, err := Open(Config{Dir: filepath.Join(dir, "snapshots"), Images: images})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ids, err := store.List()
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := store.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), dir) {
			t.Errorf("mounts are left below %s (%v)", dir, err)
		}
	})
	return store, images
}

func imported(t testing.TB, images *image.Store, layers ...[]string) image.Image {
	t.Helper()
	got, err := images.Import(t.Context(), archive(t, "test:1", layers...))
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func read(t testing.TB, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if errors.Is(err, os.ErrNotExist) {
		return "(none)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPrepareAndRemove(t *testing.T) {
	needRoot(t)
	for _, dir := range []string{"plain", `with,a:strange\name`} {
		t.Run(dir, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), dir)
			store, images := setup(t, root)
			img := imported(t, images,
				[]string{"a", "low", "b", "low", "d/", "", "d/x", "1", "d/y", "2"},
				[]string{"a", "high", ".wh.b", "", "d/.wh..wh..opq", "", "d/z", "3"})
			fs, err := store.Prepare(t.Context(), "one", img)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{
				"a":   "high",
				"b":   "(none)",
				"d/x": "(none)",
				"d/z": "3",
			} {
				if got := read(t, filepath.Join(fs, name)); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			if fi, err := os.Stat(fs); err != nil || fi.Mode().Perm() != 0o755 {
				t.Errorf("/: %v, %v", fi.Mode(), err)
			}
			if err := os.WriteFile(filepath.Join(fs, "new"), make([]byte, 10000), 0o600); err != nil {
				t.Fatal(err)
			}
			if u, err := store.Usage("one"); err != nil || u.Bytes < 10000 || u.Inodes != 2 {
				t.Errorf("Usage: got %+v, %v", u, err)
			}
			other, err := store.Prepare(t.Context(), "two", img)
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, filepath.Join(other, "new")); got != "(none)" {
				t.Errorf("the second sees the first's file: %d bytes", len(got))
			}
			if again, err := store.Prepare(t.Context(), "one", img); err != nil || again != fs ||
				len(read(t, filepath.Join(fs, "new"))) != 10000 {
				t.Errorf("prepared again: got %s, %v", again, err)
			}
			if err := images.Remove(t.Context(), "test:1"); err != nil {
				t.Fatal(err)
			}
			if got := read(t, filepath.Join(fs, "a")); got != "high" {
				t.Errorf("without its image: got %q", got)
			}
			for _, id := range []string{"one", "one", "two", "never"} {
				if err := store.Remove(t.Context(), id); err != nil {
					t.Errorf("Remove(%s): %v", id, err)
				}
			}
			if left, err := os.ReadDir(filepath.Join(root, "images/layers")); err != nil || len(left) > 0 {
				t.Errorf("layers left: %v, %v", left, err)
			}
		})
	}
}

// TestManyLayers needs more options than a page holds.
func TestManyLayers(t *testing.T) {
	needRoot(t)
	store, images := setup(t, t.TempDir())
	var layers [][]string
	for i := range 130 {
		layers = append(layers, []string{fmt.Sprintf("f%d", i), "x", "same", fmt.Sprint(i)})
	}
	img := imported(t, images, layers...)
	check := func(fs string) {
		t.Helper()
		if got := read(t, filepath.Join(fs, "same")); got != "129" {
			t.Errorf("same: got %q, want that of the uppermost layer", got)
		}
		if entries, err := os.ReadDir(fs); err != nil || len(entries) != 131 {
			t.Errorf("%d files, %v, want 131", len(entries), err)
		}
	}
	fs, err := store.Prepare(t.Context(), "many", img)
	if err != nil {
		t.Fatal(err)
	}
	check(fs)
	// The way of kernels before 6.7.
	if err := unix.Unmount(fs, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(store.dir, "many/work")),
		os.Mkdir(filepath.Join(store.dir, "many/work"), 0o700)); err != nil {
		t.Fatal(err)
	}
	o := overlay{
		target: fs,
		upper:  filepath.Join(store.dir, "many/upper"),
		work:   filepath.Join(store.dir, "many/work"),
		flags:  []string{"index=off"},
	}
	for _, l := range slices.Backward(img.Layers) {
		o.lower = append(o.lower, images.LayerDir(l.ChainID))
	}
	if err := o.mountByDescriptor(store.feat.page); err != nil {
		t.Fatal(err)
	}
	check(fs)
}

func TestNoLayers(t *testing.T) {
	needRoot(t)
	s, images := setup(t, t.TempDir())
	fs, err := s.Prepare(t.Context(), "empty", imported(t, images))
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(fs); err != nil || len(entries) > 0 {
		t.Errorf("got %v, %v", entries, err)
	}
}

func TestRemountAfterReboot(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	store, images := setup(t, dir)
	img := imported(t, images, []string{"a", "1"})
	fs, err := store.Prepare(t.Context(), "box", img)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fs, "b"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(fs, 0); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(store.dir, "half") // a Prepare that was cut short
	if err := errors.Join(os.MkdirAll(filepath.Join(half, "rootfs"), 0o700), images.Hold(lease("half"), img.Layers),
		images.Hold(lease("gone"), img.Layers)); err != nil {
		t.Fatal(err)
	}
	store, images = setup(t, dir)
	if ids, err := store.List(); err != nil || !slices.Equal(ids, []string{"box"}) {
		t.Errorf("List: got %q, %v", ids, err)
	}
	if l, err := images.Leases(); err != nil || !slices.Equal(l, []string{lease("box")}) {
		t.Errorf("Leases: got %q, %v", l, err)
	}
	for range 2 {
		if fs, err = store.Remount(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, filepath.Join(fs, "a")) != "1" || read(t, filepath.Join(fs, "b")) != "2" {
		t.Error("the files are not there")
	}
	if _, err := store.Remount(t.Context(), "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Remount of nothing: got %v", err)
	}
	if _, err := store.Usage("none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Usage of nothing: got %v", err)
	}
}

func TestFailedPrepareLeavesNothing(t *testing.T) {
	needRoot(t)
	store, images := setup(t, t.TempDir())
	img := imported(t, images, []string{"a", "1"})
	if err := images.Remove(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Prepare(t.Context(), "box", img); !errors.Is(err, manifest.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	ids, err := store.List()
	leases, lerr := images.Leases()
	if err != nil || lerr != nil || len(ids)+len(leases) > 0 {
		t.Errorf("left: %q %q, %v %v", ids, leases, err, lerr)
	}
	for _, id := range []string{"", "..", ".x", "a/b"} {
		if _, err := store.Prepare(t.Context(), id, img); err == nil {
			t.Errorf("Prepare(%q): got no error", id)
		}
	}
}

func TestBusyRootIsRemovedAllTheSame(t *testing.T) {
	needRoot(t)
	s, images := setup(t, t.TempDir())
	fs, err := s.Prepare(t.Context(), "box", imported(t, images, []string{"a", "1"}))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(fs, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := s.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
}

func TestOverlayOnOverlayIsRefused(t *testing.T) {
	needRoot(t)
	s, images := setup(t, t.TempDir())
	fs, err := s.Prepare(t.Context(), "box", imported(t, images, []string{"a", "1"}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(Config{Dir: filepath.Join(fs, "data"), Images: images})
	if err == nil || !strings.Contains(err.Error(), "lies on overlayfs") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkPrepareRemove(b *testing.B) {
	needRoot(b)
	s, images := setup(b, b.TempDir())
	img := imported(b, images, []string{"a", "1"}, []string{"b", "1"}, []string{"c", "1"})
	for b.Loop() {
		if _, err := s.Prepare(b.Context(), "box", img); err != nil {
			b.Fatal(err)
		}
		if err := s.Remove(b.Context(), "box"); err != nil {
			b.Fatal(err)
		}
	}
}
