// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"keelson/lib/inroot"
	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// outside is a tree next to a layer's root, and what it was like.
type outside struct {
	dir    string
	before []string
}

func newOutside(t testing.TB) *outside {
	t.Helper()
	o := &outside{dir: filepath.Join(t.TempDir(), "victim")}
	for _, d := range []string{"", "dir", "a", "x"} {
		if err := os.Mkdir(filepath.Join(o.dir, d), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"file", "dir/file", "a/file", "x/y"} {
		if err := os.WriteFile(filepath.Join(o.dir, f), []byte("precious"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	o.before = o.list(t)
	return o
}

func (o *outside) list(t testing.TB) []string {
	t.Helper()
	d, err := inroot.Open(o.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	var out []string
	err = d.Walk(".", inroot.WalkOptions{}, func(e *inroot.Entry) error {
		i := e.Info
		names, err := d.Listxattr(e.Path)
		out = append(out, fmt.Sprintf("%s %o %d:%d %d %d %v %v", e.Path, i.Mode, i.UID, i.GID, i.Nlink, i.Size,
			i.Modified, names))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func (o *outside) check(t testing.TB) {
	t.Helper()
	if after := o.list(t); !slices.Equal(o.before, after) {
		t.Errorf("the tree outside changed:\nbefore %q\nafter  %q", o.before, after)
	}
}

// stack unpacks layers upon each other as addLayer does. Errors do not matter here.
func stack(t testing.TB, tars ...[]byte) {
	t.Helper()
	var below []string
	for i, b := range tars {
		root := t.TempDir()
		if err := os.Chmod(root, 0o755); err != nil {
			t.Fatal(err)
		}
		got, err := Layer(t.Context(), root, bytes.NewReader(b), Limits{Bytes: 1 << 20})
		if err == nil {
			err = got.Inherit(root, below)
		}
		if err != nil && !errors.Is(err, manifest.ErrInvalid) {
			t.Logf("layer %d: %v", i, err)
		}
		below = append(below, root)
	}
}

func symlink(name, target string) imagetest.Entry {
	return imagetest.Header(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target})
}

func hardlink(name, target string) imagetest.Entry {
	return imagetest.Header(tar.Header{
		Typeflag: tar.TypeLink,
		Name:     name,
		Linkname: target,
		Mode:     0o777,
		Uid:      9,
		Gid:      9,
	})
}

// TestLayersStayInside has the layers that once reached the host.
func TestLayersStayInside(t *testing.T) {
	imagetest.NeedRoot(t)
	for name, layers := range map[string]func(v string) [][]imagetest.Entry{
		"whiteout revived through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{imagetest.File("a/", ""), imagetest.File("a/.wh.file", ""), symlink("a", v), imagetest.File("a/file/x", "evil")}}
		},
		"whiteout revived as a directory through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{imagetest.File("a/", ""), imagetest.File("a/.wh.file", ""), symlink("a", v), imagetest.File("a/file/", "")}}
		},
		"attributes inherited through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{
				{imagetest.Header(tar.Header{
					Typeflag: tar.TypeDir,
					Name:     "x/dir/",
					Mode:     0o777,
					Uid:      9,
					Gid:      9,
				}), imagetest.Header(tar.Header{
					Typeflag: tar.TypeDir,
					Name:     "x/",
					Mode:     0o777,
					Uid:      9,
					Gid:      9,
				})},
				{imagetest.File("x/dir/f", ""), symlink("x", v)},
			}
		},
		"attributes inherited from a link below": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{symlink("x", v)}, {imagetest.File("x/dir/f", "")}}
		},
		"opaque through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{symlink("a", v), imagetest.File("a/.wh..wh..opq", "")}}
		},
		"whiteout through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{symlink("a", v), imagetest.File("a/.wh.file", ""), imagetest.File("a/.wh.dir", "")}}
		},
		"hard link out": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{hardlink("h", v+"/file"), hardlink("g", "../../../.."+v+"/file")}}
		},
		"hard link through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{symlink("a", v), hardlink("h", "a/file"), imagetest.File("h", "evil")}}
		},
		"hard link to a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{symlink("a", v+"/file"), hardlink("h", "a"), imagetest.File("h/x", "evil"), imagetest.File("a/x", "evil")}}
		},
		"directory through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{symlink("a", v), imagetest.File("a/dir/", ""), imagetest.File("a/new/", "")}}
		},
		"times through a link": func(v string) [][]imagetest.Entry {
			return [][]imagetest.Entry{{imagetest.File("a/dir/", ""), symlink("a", v)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutside(t)
			var tars [][]byte
			for _, l := range layers(o.dir) {
				tars = append(tars, imagetest.LayerTar(t, l...))
			}
			stack(t, tars...)
			o.check(t)
		})
	}
}

// TestFollowsTheLayersOwnLinks: an entry below a link of the same layer goes where the link leads within the layer.
func TestFollowsTheLayersOwnLinks(t *testing.T) {
	dir, _, err := unpackTar(t, symlink("var/run", "/run"), imagetest.File("var/run/pid", "1"), symlink("up", "../../../../srv"),
		imagetest.File("up/f", "2"))
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{"run/pid": "1", "srv/f": "2"} {
		if b, err := os.ReadFile(filepath.Join(dir, p)); string(b) != want {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
	if _, _, err := unpackTar(t, symlink("a", "b"), symlink("b", "a"), imagetest.File("a/f", "")); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("links in a circle: %v", err)
	}
}

func TestInheritSeesWhatOverlayShows(t *testing.T) {
	imagetest.NeedRoot(t)
	dirOf := func(name string, mode int64) imagetest.Entry {
		return imagetest.Header(tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode})
	}
	content := [][]imagetest.Entry{
		{dirOf("a/", 0o701), dirOf("a/b/", 0o702), dirOf("gone/", 0o703), dirOf("gone/b/", 0o703)},
		{dirOf("a/", 0o705), imagetest.File("a/.wh..wh..opq", ""), imagetest.File(".wh.gone", "")},
		{imagetest.File("a/b/f", ""), imagetest.File("gone/b/f", "")},
	}
	var below []string
	for _, l := range content {
		root := t.TempDir()
		got, err := Layer(t.Context(), root, bytes.NewReader(imagetest.LayerTar(t, l...)), Limits{Bytes: 1 << 20})
		if err == nil {
			err = got.Inherit(root, below)
		}
		if err != nil {
			t.Fatal(err)
		}
		below = append(below, root)
	}
	for p, want := range map[string]fs.FileMode{
		"a":      0o705,
		"a/b":    0o755,
		"gone":   0o755,
		"gone/b": 0o755,
	} {
		if fi, err := os.Stat(filepath.Join(below[2], p)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", p, fi, err, want)
		}
	}
}

func TestLayersAreBounded(t *testing.T) {
	deep := strings.Repeat("d/", 2100)
	if _, _, err := unpackTar(t, imagetest.File(deep+"f", "")); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("a path of %d bytes: %v", len(deep), err)
	}
	many := map[string]string{}
	for i := range maxXattrs + 1 {
		many[fmt.Sprintf("SCHILY.xattr.user.%d", i)] = "x"
	}
	if _, _, err := unpackTar(t, imagetest.Header(tar.Header{Typeflag: tar.TypeReg, Name: "f", PAXRecords: many})); err == nil {
		t.Errorf("%d extended attributes were taken", len(many))
	}
	b := &bounded{
		r:   nulls{},
		in:  &counter{n: 1 << 20},
		n:   freeRatio,
		max: 1 << 60,
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, manifest.ErrInvalid) || !strings.Contains(err.Error(), "200 times") {
		t.Errorf("4 GiB from 1 MiB: %v", err)
	}
	b = &bounded{
		r:   nulls{},
		in:  &counter{n: 1 << 20},
		n:   100,
		max: 100,
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("101 bytes where 100 may be: %v", err)
	}
}

type nulls struct{}

func (nulls) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestReserveOf(t *testing.T) {
	for total, want := range map[int64]int64{
		64 << 20: 16 << 20,
		1 << 30:  128 << 20,
		40 << 30: 2 << 30,
		1 << 40:  4 << 30,
	} {
		if got := reserveOf(total); got != want {
			t.Errorf("reserve of %d: %d, want %d", total, got, want)
		}
	}
}

// odd are the names that random layers are made of; V is the tree outside.
var odd = []string{
	"a", "a/b", "a/b/c", "x", "x/y", "x/dir", "l", "l/file", "l/dir/file", "l/dir", "/a", "//x//y", "./a/./b", "../a",
	"a/../x", "a/../../x", "..", ".", "",
	"/", "V", "V/file", "../../../../../../../../V/file", "a/.wh.b", ".wh.a", ".wh.x", "l/.wh.file", "a/.wh..wh..opq",
	".wh..wh..opq", "l/.wh..wh..opq",
	".wh.", ".wh...", ".wh....", "a/.wh.l", ".wh..wh.plnk", "file", "dir", "dir/file", "a\nb", "-", "a ",
	"proc/self/root", "\xff", strings.Repeat("n", 256),
}

var kinds = []byte{
	tar.TypeReg, tar.TypeReg, tar.TypeDir, tar.TypeDir, tar.TypeSymlink, tar.TypeSymlink, tar.TypeLink, tar.TypeChar,
	tar.TypeFifo, tar.TypeBlock,
}

// randomLayers turns bytes into layers: three bytes are an entry, 0xff begins a new layer.
func randomLayers(t testing.TB, b []byte, victim string) [][]byte {
	t.Helper()
	pick := func(i byte) string { return strings.ReplaceAll(odd[int(i)%len(odd)], "V", victim) }
	layers := [][]imagetest.Entry{nil}
	for ; len(b) >= 3 && len(layers) < 5; b = b[3:] {
		if b[0] == 0xff {
			layers = append(layers, nil)
			continue
		}
		header := tar.Header{
			Typeflag: kinds[int(b[0])%len(kinds)],
			Name:     pick(b[1]),
			Mode:     int64(b[2])<<4 | 0o6000,
			Uid:      int(b[2]),
			Gid:      9,
			Devmajor: 1,
			Devminor: 7,
			Format:   tar.FormatPAX,
		}
		header.ModTime = time.Unix(int64(b[2]), 0)
		if header.Typeflag == tar.TypeSymlink || header.Typeflag == tar.TypeLink {
			header.Linkname = pick(b[2])
			header.Devmajor = 0
			header.Devminor = 0
		}
		e := imagetest.Entry{Hdr: &header}
		if header.Typeflag == tar.TypeReg {
			e.Content = "evil"
			header.Size = 4
		}
		layers[len(layers)-1] = append(layers[len(layers)-1], e)
	}
	var out [][]byte
	for _, l := range layers {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, e := range l {
			if w.WriteHeader(e.Hdr) == nil {
				_, _ = w.Write([]byte(e.Content))
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		out = append(out, buf.Bytes())
	}
	return out
}

func TestRandomLayersStayInside(t *testing.T) {
	imagetest.NeedRoot(t)
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 3*(5+r.IntN(60)))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		o := newOutside(t)
		stack(t, randomLayers(t, b, o.dir)...)
		if o.check(t); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzLayers(f *testing.F) {
	// a whiteout, its directory a link, then below it
	f.Add([]byte{2, 0, 7, 0, 23, 0, 4, 0, 20, 0, 2, 0})
	// implicit directories over a lower layer
	f.Add([]byte{2, 5, 255, 255, 0, 0, 0, 6, 0, 4, 3, 20})
	f.Add([]byte{6, 0, 21, 0, 0, 0, 4, 6, 20, 6, 0, 7, 0, 26, 0, 0, 29, 0, 2, 8, 0}) // links of both kinds
	f.Fuzz(func(t *testing.T, b []byte) {
		o := newOutside(t)
		stack(t, randomLayers(t, b[:min(len(b), 600)], o.dir)...)
		o.check(t)
	})
}

func FuzzUnpack(f *testing.F) {
	f.Add(imagetest.LayerTar(f, imagetest.File("a/", ""), imagetest.File("a/b", "x"), imagetest.File("a/.wh.c", ""), imagetest.File(".wh..wh..opq", "")))
	f.Add(imagetest.LayerTar(f, imagetest.File(".wh.a", ""), imagetest.File("a/b", "")))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		root := filepath.Join(dir, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		_, _ = Layer(t.Context(), root, bytes.NewReader(b), Limits{Bytes: 1 << 20}) // must end, and stay below root
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("next to the root: %v, %v", left, err)
		}
	})
}
