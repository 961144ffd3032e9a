// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// tarDir packs a directory, without a leading "./".
func tarDir(t testing.TB, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func ociLayout(t testing.TB, ix v1.ImageIndex) []byte {
	t.Helper()
	dir := t.TempDir()
	if _, err := layout.Write(dir, ix); err != nil {
		t.Fatal(err)
	}
	return tarDir(t, dir)
}

func named(img mutate.Appendable, key, value string) mutate.IndexAddendum {
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Annotations: map[string]string{key: value}}}
}

func dockerSave(t testing.TB, images map[string]v1.Image) []byte {
	t.Helper()
	refs := map[name.Tag]v1.Image{}
	for n, img := range images {
		tag, err := name.NewTag(n)
		if err != nil {
			t.Fatal(err)
		}
		refs[tag] = img
	}
	var b bytes.Buffer
	if err := tarball.MultiWrite(refs, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gz(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func zs(b []byte) []byte {
	w, _ := zstd.NewWriter(nil)
	return w.EncodeAll(b, nil)
}

func TestImport(t *testing.T) {
	image := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	b := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")), imagetest.LayerTar(t, imagetest.File("b", "2")))
	oci := ociLayout(t, mutate.AppendManifests(empty.Index,
		named(image, "org.opencontainers.image.ref.name", "localhost:5000/a:v1"), named(b, "io.containerd.image.name",
			"docker.io/library/b:v2"),
		named(imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("c", "3"))), "org.opencontainers.image.ref.name", "latest")))
	docker := dockerSave(t, map[string]v1.Image{"a:v1": image, "b:v2": b})
	asFile := filepath.Join(t.TempDir(), "f.tar")
	if err := os.WriteFile(asFile, docker, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(asFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, c := range []struct {
		name  string
		r     io.Reader
		count int
		refs  []string
	}{
		{"oci", bytes.NewReader(oci), 3, []string{"localhost:5000/a:v1", "b:v2"}},
		{"oci, gzip", bytes.NewReader(gz(oci)), 3, []string{"localhost:5000/a:v1", "b:v2"}},
		{"docker", bytes.NewReader(docker), 2, []string{"a:v1", "b:v2"}},
		{"docker, zstd", bytes.NewReader(zs(docker)), 2, []string{"a:v1", "b:v2"}},
		{"docker, in a file", f, 2, []string{"a:v1", "b:v2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := newStore(t)
			got, err := store.Import(t.Context(), c.r)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != c.count || len(store.List()) != c.count {
				t.Errorf("got %d images, the store has %d, want %d", len(got), len(store.List()), c.count)
			}
			for i, ref := range c.refs {
				img, ok := store.Get(ref)
				if want := imagetest.IDOf(t, []v1.Image{image, b}[i]); !ok || img.ID != want {
					t.Errorf("Get(%q): got %s, %v, want %s", ref, img.ID, ok, want)
				}
			}
			if img, _ := store.Get(c.refs[1]); !slices.Equal(imagetest.Tree(t, store.LayerDir(img.Layers[1].ChainID)),
				[]string{"b=2"}) {
				t.Errorf("layer of b: %q", imagetest.Tree(t, store.LayerDir(img.Layers[1].ChainID)))
			}
			if left := imagetest.Tree(t, store.path("tmp")); len(left) > 0 {
				t.Errorf("tmp: %q", left)
			}
		})
	}
}

func TestImportRefuses(t *testing.T) {
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	docker := dockerSave(t, map[string]v1.Image{"a:v1": img})
	flipped := bytes.Clone(docker)
	if i := bytes.Index(flipped, []byte(`"rootfs"`)); i > 0 {
		flipped[i+1] ^= 1
	}
	oci := ociLayout(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img}))
	tampered := bytes.Replace(oci, []byte(`"A=b"`), []byte(`"A=c"`), 1)
	for name, c := range map[string]struct {
		b    []byte
		text string
	}{
		"nothing":        {nil, "not an image archive: it is empty"},
		"nothing, gzip":  {gz(nil), "not an image archive: it is empty"},
		"few bytes":      {[]byte("no"), "it is no tar archive, plain or compressed"},
		"no tar":         {[]byte(strings.Repeat("no tar", 200)), "it is no tar archive, plain or compressed"},
		"no tar, gzip":   {gz([]byte(strings.Repeat("no tar", 200))), "it is no tar archive, plain or compressed"},
		"no tar, zstd":   {zs([]byte(strings.Repeat("no tar", 200))), "it is no tar archive, plain or compressed"},
		"no gzip":        {append([]byte{0x1f, 0x8b, 0x08}, strings.Repeat("x", 200)...), "its compression is damaged ("},
		"cut gzip":       {gz(docker)[:200], "its compression is damaged (unexpected EOF)"},
		"no zstd":        {append([]byte{0x28, 0xb5, 0x2f, 0xfd}, strings.Repeat("x", 200)...), "its compression is damaged ("},
		"another tar":    {imagetest.LayerTar(t, imagetest.File("x", "y")), "neither index.json (OCI) nor manifest.json (docker)"},
		"cut":            {docker[:len(docker)/2], "archive"},
		"config changed": {flipped, ""},
		"blob changed":   {tampered, "has digest"},
		"bad manifest":   {imagetest.LayerTar(t, imagetest.File("manifest.json", "{")), "manifest.json"},
		"bad index":      {imagetest.LayerTar(t, imagetest.File("index.json", "[]")), "index.json"},
		"lacking config": {
			imagetest.LayerTar(t, imagetest.File("manifest.json", `[{"Config":"../../etc/passwd","Layers":[]}]`)), "archive lacks",
		},
		"link loop": {imagetest.LayerTar(t, imagetest.Header(tar.Header{Typeflag: tar.TypeSymlink, Name: "manifest.json", Linkname: "m"}),
			imagetest.Header(tar.Header{Typeflag: tar.TypeSymlink, Name: "m", Linkname: "manifest.json"})), "neither index.json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Import(t.Context(), bytes.NewReader(c.b))
			if !errors.Is(err, manifest.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %q", err, c.text)
			}
			if len(s.List()) > 0 || len(imagetest.Tree(t, s.path("tmp"))) > 0 {
				t.Errorf("left: %v, %q", s.List(), imagetest.Tree(t, s.path("tmp")))
			}
		})
	}
}

func FuzzImport(f *testing.F) {
	img := imagetest.NewImage(f, imagetest.LayerTar(f, imagetest.File("a", "1")))
	f.Add(dockerSave(f, map[string]v1.Image{"a:v1": img}))
	f.Add(ociLayout(f, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})))
	f.Add(imagetest.LayerTar(f, imagetest.File("manifest.json", `[{"Config":"../c","RepoTags":["a:v1"],"Layers":["l"]}]`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newStore(t, func(c *Config) { c.MaxLayerBytes = 1 << 20 })
		if _, err := s.Import(t.Context(), bytes.NewReader(b)); err != nil && len(s.List()) > 0 {
			t.Errorf("failed with %v and left %v", err, s.List())
		}
	})
}

// TestImportedImagesArePinned: an image that was imported stays when disk is reclaimed, until a registry has it, too.
func TestImportedImagesArePinned(t *testing.T) {
	host := imagetest.NewRegistry(t)
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	imagetest.Push(t, host+"/a:v1", img)
	archive := dockerSave(t, map[string]v1.Image{host + "/a:v1": img})
	pinned := func(store *Store) bool {
		t.Helper()
		got, ok := store.Get(host + "/a:v1")
		if !ok {
			t.Fatal("the image is not there")
		}
		return got.Pinned
	}
	imports := func(store *Store) {
		t.Helper()
		if _, err := store.Import(t.Context(), bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
	}
	pulls := func(store *Store) {
		t.Helper()
		if _, err := store.Pull(t.Context(), Request{Ref: host + "/a:v1"}); err != nil {
			t.Fatal(err)
		}
	}
	first := newStore(t)
	imports(first)
	if !pinned(first) {
		t.Error("imported: not pinned")
	}
	pulls(first)
	if pinned(first) {
		t.Error("imported and pulled: pinned")
	}
	second := newStore(t)
	pulls(second)
	imports(second)
	if pinned(second) {
		t.Error("pulled and imported: pinned")
	}
}
