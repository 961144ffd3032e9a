// SPDX-License-Identifier: Apache-2.0

// Package imagetest makes what the tests of images need: layers, images, and registries that have them. Tests alone
// import it.
package imagetest

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Media types of the specification, and docker's of the same things.
const (
	TypeIndex          = "application/vnd.oci.image.index.v1+json"
	TypeManifest       = "application/vnd.oci.image.manifest.v1+json"
	TypeConfig         = "application/vnd.oci.image.config.v1+json"
	TypeLayer          = "application/vnd.oci.image.layer.v1.tar"
	TypeRestricted     = "application/vnd.oci.image.layer.nondistributable.v1.tar"
	TypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	TypeDockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// AnyDigest is a well-formed digest that no content has.
const AnyDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// NewRegistry serves an empty registry on a loopback port and returns its host.
func NewRegistry(t testing.TB) string {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// Entry is one file of a layer: content, "dir/" for a directory, or a header to be used as it is.
type Entry struct {
	name    string
	Content string
	Hdr     *tar.Header
}

// File is a regular file of a layer.
func File(name, content string) Entry { return Entry{name: name, Content: content} }

// LayerTar is the tar archive of a layer with these entries.
func LayerTar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	writer := tar.NewWriter(&buf)
	for _, e := range entries {
		header := e.Hdr
		if header == nil {
			header = &tar.Header{
				Name:     e.name,
				Mode:     0o644,
				Size:     int64(len(e.Content)),
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
		if _, err := io.WriteString(writer, e.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// NewImage is an image of these layers, with a command and an environment.
func NewImage(t testing.TB, layers ...[]byte) v1.Image {
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

// Push pushes img to the registry that ref names.
func Push(t testing.TB, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

// IDOf is the digest of the image's configuration.
func IDOf(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// DigestOf is the digest of the image's manifest.
func DigestOf(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// Tree lists what is below dir: "path" or "path=content" for files, "path/" for directories.
func Tree(t testing.TB, dir string) []string {
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

// NeedRoot skips a test that is not root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: sets trusted attributes and owners")
	}
}

// Header is an entry with this header as it is.
func Header(h tar.Header) Entry { return Entry{Hdr: &h} }

// Front is a registry behind a handler that may interfere.
func Front(t testing.TB, interfere func(w http.ResponseWriter, r *http.Request, next http.Handler)) (host string) {
	t.Helper()
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { interfere(w, r, reg) }))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// WideFrame packs content (RFC 8878) in a zstd frame of one raw block that asks for the largest window, 128 MiB.
func WideFrame(content []byte) []byte {
	const windowLog27 = 17 << 3
	out := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, windowLog27}
	block := uint32(len(content))<<3 | 1 // the last one, raw
	out = append(out, byte(block), byte(block>>8), byte(block>>16))
	return append(out, content...)
}
