// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// newStore opens a store in a directory of the test.
func newStore(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "images")}
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newRegistry serves an empty registry on a loopback port and returns its host.
func newRegistry(t testing.TB) string {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// entry is one file of a layer: content, "dir/" for a directory, or a header to be used as it is.
type entry struct {
	name    string
	content string
	hdr     *tar.Header
}

func file(name, content string) entry { return entry{name: name, content: content} }

func layerTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	writer := tar.NewWriter(&buf)
	for _, e := range entries {
		header := e.hdr
		if header == nil {
			header = &tar.Header{
				Name:     e.name,
				Mode:     0o644,
				Size:     int64(len(e.content)),
				Typeflag: tar.TypeReg,
			}
			if strings.HasSuffix(e.name, "/") {
				header.Typeflag = tar.TypeDir
				header.Mode = 0o755
			}
		}
		if header.Uid == 0 && os.Getuid() != 0 {
			header.Uid = os.Getuid()
			header.Gid = os.Getgid()
		}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(writer, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func newImage(t testing.TB, layers ...[]byte) v1.Image {
	t.Helper()
	img, err := mutate.Config(empty.Image, v1.Config{Env: []string{"A=b"}, Cmd: []string{"/x"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(b)),
				nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

func push(t testing.TB, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

func idOf(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func digestOfImage(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// tree lists what is below dir: "path" or "path=content" for files, "path/" for directories.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case entry.IsDir():
			out = append(out, rel+"/")
		case entry.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out = append(out, rel+"="+string(b))
		default:
			out = append(out, rel+" "+entry.Type().String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func names(s *Store) []string {
	var out []string
	for _, i := range s.List() {
		out = append(out, strings.Join(i.RepoTags, ",")+" "+i.ID[7:15])
	}
	slices.Sort(out)
	return out
}

func TestPull(t *testing.T) {
	host := newRegistry(t)
	img := newImage(t,
		layerTar(t, file("etc/", ""), file("etc/a", "1"), file("bin/x", "run")),
		layerTar(t, file("etc/b", "2")))
	push(t, host+"/team/app:v1", img)
	store := newStore(t)
	var last [2]int64
	got, err := store.Pull(t.Context(), Request{
		Ref: host + "/team/app:v1",
		Progress: func(done, total int64) {
			last = [2]int64{done, total}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != idOf(t, img) {
		t.Errorf("ID: got %s, want %s", got.ID, idOf(t, img))
	}
	if want := []string{host + "/team/app:v1"}; !slices.Equal(got.RepoTags, want) {
		t.Errorf("RepoTags: got %q, want %q", got.RepoTags, want)
	}
	if want := []string{host + "/team/app@" + digestOfImage(t, img)}; !slices.Equal(got.RepoDigests, want) {
		t.Errorf("RepoDigests: got %q, want %q", got.RepoDigests, want)
	}
	if !slices.Equal(got.Config.Env, []string{"A=b"}) || !slices.Equal(got.Config.Cmd, []string{"/x"}) {
		t.Errorf("Config: got %+v", got.Config)
	}
	if last[0] != last[1] || last[0] == 0 {
		t.Errorf("progress ended at %d of %d bytes", last[0], last[1])
	}
	want := []string{"bin/", "bin/x=run", "etc/", "etc/a=1"}
	if d := cmp.Diff(want, tree(t, store.LayerDir(got.Layers[0].ChainID))); d != "" {
		t.Errorf("first layer (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"etc/", "etc/b=2"}, tree(t, store.LayerDir(got.Layers[1].ChainID))); d != "" {
		t.Errorf("second layer (-want +got):\n%s", d)
	}
	for _, ref := range []string{host + "/team/app:v1", got.ID, got.ID[:20], got.ID[7:12], got.RepoDigests[0]} {
		if found, ok := store.Get(ref); !ok || found.ID != got.ID {
			t.Errorf("Get(%q): got %q, %v", ref, found.ID, ok)
		}
	}
	if u, err := store.FsInfo(); err != nil || u.Bytes < 3*4096 || u.Inodes != 4 {
		t.Errorf("FsInfo: got %+v, %v", u, err)
	}
}
