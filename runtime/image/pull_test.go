// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"keelson/lib/waittest"
	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
	"keelson/runtime/image/registry"
)

func TestErrorsSayWhatIsWrong(t *testing.T) {
	host := imagetest.NewRegistry(t)
	imagetest.Push(t, host+"/app:v1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	store := newStore(t)
	for _, c := range []struct {
		ref  string
		is   error
		text string
	}{
		{host + "/app:v2", manifest.ErrNotFound, "manifest unknown"},
		{host + "/none:v1", manifest.ErrNotFound, "not known to registry"},
		{host + "/app@sha256:" + strings.Repeat("0", 64), manifest.ErrNotFound, "manifest unknown"},
		{strings.TrimPrefix(gone.URL, "http://") + "/app:v1", manifest.ErrUnavailable, "connection refused"},
		{"UPPER/case", manifest.ErrReference, "invalid reference format"},
		{"", manifest.ErrReference, "invalid reference format"},
	} {
		_, err := store.Pull(t.Context(), Request{Ref: c.ref})
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("Pull(%q): got %v, want %v and %q", c.ref, err, c.is, c.text)
		}
	}
	if got := store.List(); len(got) > 0 {
		t.Errorf("after failures the store has %v", got)
	}
}

func TestMirror(t *testing.T) {
	mirror := imagetest.NewRegistry(t)
	origin := imagetest.NewRegistry(t)
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "mirror")))
	only := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "origin")))
	imagetest.Push(t, mirror+"/hub/library/nginx:1", img)
	imagetest.Push(t, origin+"/team/app:1", only)
	store := newStore(t, func(c *Config) {
		c.Registries = mirrors(map[string]string{"docker.io": "http://" + mirror + "/hub", origin: "http://" + mirror})
	})
	got, err := store.Pull(t.Context(), Request{Ref: "nginx:1"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"docker.io/library/nginx:1"}; got.ID != imagetest.IDOf(t, img) || !slices.Equal(got.RepoTags, want) {
		t.Errorf("through the mirror: got %s %q", got.ID, got.RepoTags)
	}
	if got, err = store.Pull(t.Context(), Request{Ref: origin + "/team/app:1"}); err != nil || got.ID != imagetest.IDOf(t, only) {
		t.Errorf("mirror without the image: got %s, %v", got.ID, err)
	}
	_, err = store.Pull(t.Context(), Request{Ref: origin + "/team/none:1"})
	if !errors.Is(err, manifest.ErrNotFound) || !strings.Contains(err.Error(), "(mirror "+mirror) {
		t.Errorf("in neither: got %v", err)
	}
	if _, err := Open(Config{Dir: t.TempDir(), Registries: mirrors(map[string]string{"docker.io": "mirror.local"})}); err == nil {
		t.Error("a mirror without a scheme was accepted")
	}
}

// TestRegistrySettings: a mirror with a certificate of its own authority and a login is used with both, after one that
// has no such image; without the authority it is not trusted, and without the login it refuses.
func TestRegistrySettings(t *testing.T) {
	without := imagetest.NewRegistry(t)
	behind := imagetest.NewRegistry(t)
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	imagetest.Push(t, behind+"/app:1", img)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind})
	secured := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	secured.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer secured.Close()
	host := strings.TrimPrefix(secured.URL, "https://")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secured.Certificate().Raw})
	login := &registry.Auth{Username: "me", Password: "secret"}
	for name, c := range map[string]struct {
		host registry.Host
		want string
	}{
		"authority and login":   {registry.Host{CA: ca, Auth: login}, ""},
		"any authority":         {registry.Host{SkipVerify: true, Auth: login}, ""},
		"no authority":          {registry.Host{Auth: login}, "certificate signed by unknown authority"},
		"no login":              {registry.Host{CA: ca}, "401"},
		"a login that is wrong": {registry.Host{CA: ca, Auth: &registry.Auth{Username: "me"}}, "401"},
	} {
		store := newStore(t, func(c0 *Config) {
			c0.Registries = registry.Settings{
				Mirrors: map[string]registry.Mirror{
					"registry.invalid": {Endpoints: []string{"http://" + without, "https://" + host}},
				},
				Hosts: map[string]registry.Host{host: c.host},
			}
		})
		got, err := store.Pull(t.Context(), Request{Ref: "registry.invalid/app:1"})
		switch {
		case c.want == "" && (err != nil || got.ID != imagetest.IDOf(t, img)):
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

func TestPullSecrets(t *testing.T) {
	var seen atomic.Value
	host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		user, pass, _ := r.BasicAuth()
		bearer := r.Header.Get("Authorization") == "Bearer tok"
		if r.Method == http.MethodGet || r.URL.Path == "/v2/" {
			seen.Store(r.Header.Get("Authorization"))
			if !bearer && (user != "me" || pass != "secret") {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				if r.Header.Get("X-Bearer") != "" {
					w.Header().Set("WWW-Authenticate", `Bearer realm="x"`)
				}
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
	ref, err := name.ParseReference(host + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	login := authn.FromConfig(authn.AuthConfig{Username: "me", Password: "secret"})
	if err := remote.Write(ref, img, remote.WithAuth(login)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		auth *registry.Auth
		ok   bool
	}{
		{"none", nil, false},
		{"user and password", &registry.Auth{Username: "me", Password: "secret"}, true},
		{"wrong password", &registry.Auth{Username: "me", Password: "x"}, false},
		{"auth", &registry.Auth{Auth: "bWU6c2VjcmV0"}, true},
		{"auth that is not base64", &registry.Auth{Auth: "%"}, false},
		{"for this server", &registry.Auth{Username: "me", Password: "secret", ServerAddress: "https://" + host + "/v1/"}, true},
		{"for another server", &registry.Auth{Username: "me", Password: "secret", ServerAddress: "other.io"}, false},
	} {
		_, err := newStore(t).Pull(t.Context(), Request{Ref: host + "/app:1", Auth: c.auth})
		if c.ok && err != nil || !c.ok && !errors.Is(err, manifest.ErrUnauthorized) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	// A secret never goes to a mirror that it does not name.
	mirrored := newStore(t, func(c *Config) { c.Registries = mirrors(map[string]string{"registry.invalid": "http://" + host}) })
	seen.Store("")
	if _, err := mirrored.Pull(t.Context(),
		Request{Ref: "registry.invalid/app:1", Auth: &registry.Auth{Username: "me", Password: "secret"}}); err == nil {
		t.Error("the mirror accepted a secret that was not for it")
	}
	if got := seen.Load(); got != "" {
		t.Errorf("the mirror saw %q", got)
	}
}

func TestPlatform(t *testing.T) {
	host := imagetest.NewRegistry(t)
	mine := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "mine")))
	other := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "other")))
	wrong := "arm64"
	if runtime.GOARCH == wrong {
		wrong = "amd64"
	}
	add := func(img v1.Image, arch, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{
			Add: img,
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "linux", Architecture: arch, Variant: variant},
			},
		}
	}
	both := mutate.AppendManifests(empty.Index, add(other, wrong, ""), add(other, runtime.GOARCH, "v9"),
		add(mine, runtime.GOARCH, ""))
	nested := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: both})
	for tag, ix := range map[string]v1.ImageIndex{
		"both":   both,
		"none":   mutate.AppendManifests(empty.Index, add(other, wrong, "")),
		"nested": nested,
	} {
		ref, err := name.ParseReference(host + "/multi:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(ref, ix); err != nil {
			t.Fatal(err)
		}
	}
	store := newStore(t)
	got, err := store.Pull(t.Context(), Request{Ref: host + "/multi:both"})
	if err != nil || got.ID != imagetest.IDOf(t, mine) {
		t.Errorf("index: got %s, %v, want %s", got.ID, err, imagetest.IDOf(t, mine))
	}
	if d, err := both.Digest(); err != nil || !slices.Equal(got.RepoDigests, []string{host + "/multi@" + d.String()}) {
		t.Errorf("RepoDigests: got %q, want the index's digest %s", got.RepoDigests, d)
	}
	if got, err := store.Pull(t.Context(), Request{Ref: host + "/multi:nested"}); err != nil ||
		got.ID != imagetest.IDOf(t, mine) {
		t.Errorf("index in an index: got %s, %v", got.ID, err)
	}
	_, err = store.Pull(t.Context(), Request{Ref: host + "/multi:none"})
	if !errors.Is(err, manifest.ErrNotFound) || !strings.Contains(err.Error(), "no image for platform linux/"+runtime.GOARCH) {
		t.Errorf("other platform: got %v", err)
	}
	alien, err := mutate.ConfigFile(other, &v1.ConfigFile{
		OS:           "windows",
		Architecture: runtime.GOARCH,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		t.Fatal(err)
	}
	imagetest.Push(t, host+"/alien:1", alien)
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/alien:1"}); !errors.Is(err, manifest.ErrInvalid) ||
		!strings.Contains(err.Error(), "windows/") {
		t.Errorf("alien image: got %v", err)
	}
}

// bigLayer does not compress, so that a transfer has a middle.
func bigLayer(t testing.TB, n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return imagetest.LayerTar(t, imagetest.File("big", string(b)))
}

func TestTransferIsResumed(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges=%v", ranges), func(t *testing.T) {
			var cuts, resumed atomic.Int32
			host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
					next.ServeHTTP(w, r)
					return
				}
				rec := httptest.NewRecorder()
				plain := r.Clone(r.Context())
				plain.Header.Del("Range")
				next.ServeHTTP(rec, plain)
				body := rec.Body.Bytes()
				if h := r.Header.Get("Range"); h != "" && ranges {
					var from int
					if _, err := fmt.Sscanf(h, "bytes=%d-", &from); err != nil {
						t.Error(err)
					}
					resumed.Add(1)
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
					w.WriteHeader(http.StatusPartialContent)
					body = body[from:]
				} else if len(body) < 100_000 {
					_, _ = w.Write(body)
					return
				} else {
					w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				}
				if cuts.Add(1) <= 2 {
					_, _ = w.Write(body[:len(body)/2])
					panic(http.ErrAbortHandler)
				}
				_, _ = w.Write(body)
			})
			img := imagetest.NewImage(t, bigLayer(t, 300_000))
			imagetest.Push(t, host+"/app:1", img)
			got, err := newStore(t).Pull(t.Context(), Request{Ref: host + "/app:1"})
			if err != nil || got.ID != imagetest.IDOf(t, img) {
				t.Fatalf("got %s, %v", got.ID, err)
			}
			if ranges && resumed.Load() != 2 {
				t.Errorf("resumed %d times, want 2", resumed.Load())
			}
		})
	}
}

func TestWrongBytesAreRefused(t *testing.T) {
	good := imagetest.NewImage(t, bigLayer(t, 100_000))
	for name, change := range map[string]func([]byte) []byte{
		"flipped": func(b []byte) []byte {
			b = bytes.Clone(b)
			b[len(b)/2] ^= 1
			return b
		},
		"longer": func(b []byte) []byte { return append(bytes.Clone(b), 1, 2, 3) },
		"empty":  func([]byte) []byte { return make([]byte, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				body := rec.Body.Bytes()
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && len(body) > 10_000 {
					body = change(body)
				}
				for k, v := range rec.Header() {
					if k != "Content-Length" {
						w.Header()[k] = v
					}
				}
				w.WriteHeader(rec.Code)
				_, _ = w.Write(body)
			})
			imagetest.Push(t, host+"/app:1", good)
			s := newStore(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if _, err := s.Pull(ctx, Request{Ref: host + "/app:1"}); err == nil {
				t.Error("pulled")
			}
			if left := imagetest.Tree(t, s.path("layers")); len(left) > 0 {
				t.Errorf("layers: %q", left)
			}
			if left := imagetest.Tree(t, s.path("tmp")); len(left) > 0 {
				t.Errorf("tmp: %q", left)
			}
		})
	}
}

// waiting is how many wait for a pull.
func (s *Store) waiting() (n int) {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	for _, f := range s.flights.byKey {
		n += f.waiters
	}
	return n
}

func TestSamePullIsShared(t *testing.T) {
	var blobs atomic.Int32
	release := make(chan struct{})
	host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			blobs.Add(1)
			<-release
		}
		next.ServeHTTP(w, r)
	})
	base := imagetest.LayerTar(t, imagetest.File("base", "1"))
	imagetest.Push(t, host+"/a:1", imagetest.NewImage(t, base, imagetest.LayerTar(t, imagetest.File("a", "1"))))
	imagetest.Push(t, host+"/b:1", imagetest.NewImage(t, base, imagetest.LayerTar(t, imagetest.File("b", "1"))))
	store := newStore(t)
	var wg sync.WaitGroup
	for _, ref := range []string{"/a:1", "/a:1", "/a:1", "/b:1"} {
		wg.Go(func() {
			if _, err := store.Pull(t.Context(), Request{Ref: host + ref}); err != nil {
				t.Error(err)
			}
		})
	}
	waittest.Until(t, "the pulls begin", func() bool { return store.waiting() == 4 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Pull(ctx, Request{Ref: host + "/a:1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: got %v", err)
	}
	close(release)
	wg.Wait()
	if got := blobs.Load(); got != 5 { // two configs and three different layers
		t.Errorf("%d blobs were fetched, want 5", got)
	}
	if got := len(store.List()); got != 2 {
		t.Errorf("%d images, want 2", got)
	}
}

func TestLastWaiterEndsThePull(t *testing.T) {
	begun := make(chan struct{}, 1)
	ended := make(chan struct{}, 1)
	host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
			begun <- struct{}{}
			<-r.Context().Done()
			ended <- struct{}{}
			return
		}
		next.ServeHTTP(w, r)
	})
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { // ends when ctx is cancelled below
		_, err := s.Pull(ctx, Request{Ref: host + "/a:1"})
		failed <- err
	}()
	<-begun
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-ended
}

func TestZstdAndPlainLayers(t *testing.T) {
	host := imagetest.NewRegistry(t)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := imagetest.LayerTar(t, imagetest.File("z", "zstd"))
	packed := enc.EncodeAll(plain, nil)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)),
			nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	imagetest.Push(t, host+"/z:1", img)
	s := newStore(t)
	got, err := s.Pull(t.Context(), Request{Ref: host + "/z:1"})
	if err != nil {
		t.Fatal(err)
	}
	if d := imagetest.Tree(t, s.LayerDir(got.Layers[0].ChainID)); !slices.Equal(d, []string{"z=zstd"}) {
		t.Errorf("layer: got %q", d)
	}
}

// freeAddr is an address without a listener, with a port below those that the kernel picks for a listener on port 0.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000))
		l, err := net.Listen("tcp", addr)
		if err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// TestDistributionRegistry pulls from the registry most people run.
func TestDistributionRegistry(t *testing.T) {
	bin, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("needs docker-registry (Debian package of that name)")
	}
	dir := t.TempDir()
	addr := freeAddr(t)
	conf := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "+
		"%q}\n", dir, addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "serve", conf)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	waittest.Right(t, "the registry answers", func() string {
		resp, err := http.Get("http://" + addr + "/v2/")
		if err != nil {
			return err.Error()
		}
		_ = resp.Body.Close()
		return ""
	})
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("etc/", ""), imagetest.File("etc/a", "1")), bigLayer(t, 2<<20))
	imagetest.Push(t, addr+"/team/app:v1", img)
	s := newStore(t)
	got, err := s.Pull(t.Context(), Request{Ref: addr + "/team/app:v1"})
	if err != nil || got.ID != imagetest.IDOf(t, img) {
		t.Fatalf("got %s, %v, want %s", got.ID, err, imagetest.IDOf(t, img))
	}
	if _, err := s.Pull(t.Context(), Request{Ref: addr + "/team/app:v9"}); !errors.Is(err, manifest.ErrNotFound) ||
		!strings.Contains(err.Error(), "manifest unknown") {
		t.Errorf("unknown tag: got %v", err)
	}
}

func BenchmarkPull(b *testing.B) {
	host := imagetest.NewRegistry(b)
	var entries []imagetest.Entry
	for i := range 2000 {
		entries = append(entries, imagetest.File(fmt.Sprintf("f%d", i), strings.Repeat("x", 4000)))
	}
	imagetest.Push(b, host+"/app:1", imagetest.NewImage(b, imagetest.LayerTar(b, entries...)))
	for b.Loop() {
		if _, err := newStore(b).Pull(b.Context(), Request{Ref: host + "/app:1"}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTenantsDoNotWaitForEachOther: layers that one namespace's registry does not send keep no other from pulling, not
// even from the same image, nor from one whose layers the slow image claims as its own.
func TestTenantsDoNotWaitForEachOther(t *testing.T) {
	var held atomic.Int32
	var layers sync.Map // paths of the slow layers
	hold := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if _, slow := layers.Load(r.URL.Path); slow && r.Method == http.MethodGet {
			held.Add(1)
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	}
	host := imagetest.Front(t, hold)
	good := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	imagetest.Push(t, host+"/good:1", good)
	ctx, cancel := context.WithCancel(t.Context())
	store := newStore(t)
	ended := make(chan error, 8)
	for i := range cap(ended) {
		ref := fmt.Sprintf("%s/slow%d:1", host, i)
		img := good // claims the layer of the good one
		if i > 0 {
			img = imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("b", fmt.Sprint(i))))
		}
		imagetest.Push(t, ref, img)
		all, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := all[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		layers.Store(fmt.Sprintf("/v2/slow%d/blobs/%s", i, digest), true)
		go func() { // ends when ctx is cancelled
			_, err := store.Pull(ctx, Request{Ref: ref, Tenant: "greedy"})
			ended <- err
		}()
	}
	waittest.Until(t, "the greedy namespace has its downloads", func() bool { return held.Load() == 4 })
	got, err := store.Pull(t.Context(), Request{Ref: host + "/good:1", Tenant: "other"})
	if err != nil || got.ID != imagetest.IDOf(t, good) {
		t.Errorf("another namespace: got %s, %v", got.ID, err)
	}
	cancel()
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got %v", err)
		}
	}
}

// mirrors are settings with one mirror for a registry host.
func mirrors(urls map[string]string) registry.Settings {
	s := registry.Settings{Mirrors: map[string]registry.Mirror{}}
	for host, url := range urls {
		s.Mirrors[host] = registry.Mirror{Endpoints: []string{url}}
	}
	return s
}
