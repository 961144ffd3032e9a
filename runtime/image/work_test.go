// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"keelson/lib/waittest"
	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// stalling serves images whose last layer stops in the middle, until release is closed. Each such transfer is announced
// on stalled.
func stalling(t *testing.T) (host string, stalled, release chan struct{}) {
	t.Helper()
	stalled = make(chan struct{}, 16)
	release = make(chan struct{})
	host = imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/slow/blobs/") {
			next.ServeHTTP(w, r)
			return
		}
		half := &halfWriter{ResponseWriter: w, wait: func() {
			stalled <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}}
		next.ServeHTTP(half, r)
	})
	return host, stalled, release
}

// halfWriter waits in the middle of a large body.
type halfWriter struct {
	http.ResponseWriter
	wait func()
	n    int
}

func (h *halfWriter) Write(p []byte) (int, error) {
	before := h.n
	h.n += len(p)
	const middle = 100_000
	if before >= middle || h.n < middle {
		return h.ResponseWriter.Write(p)
	}
	n, err := h.ResponseWriter.Write(p[:middle-before])
	if err != nil {
		return n, err
	}
	if err := http.NewResponseController(h.ResponseWriter).Flush(); err != nil {
		return n, err
	}
	h.wait()
	m, err := h.ResponseWriter.Write(p[middle-before:])
	return n + m, err
}

// left lists the trees and leases of a store, without what is in the layers.
func left(t *testing.T, s *Store) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{"layers", "tmp", "trash", "leases"} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}

// TestCollectionWaitsForNoPull: while a pull waits for its registry, other images give their disk space back. What the
// pull needs stays: what it has unpacked, and what belongs to an image that is removed meanwhile.
func TestCollectionWaitsForNoPull(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *Store{
		"in this process": func(t *testing.T) *Store { return newStore(t) },
		"by a helper":     func(t *testing.T) *Store { return helped(t, helperMemory) },
	} {
		t.Run(name, func(t *testing.T) {
			host, stalled, release := stalling(t)
			base := imagetest.LayerTar(t, imagetest.File("base", "1"))
			own := imagetest.LayerTar(t, imagetest.File("own", "1"))
			img := imagetest.NewImage(t, base, own, bigLayer(t, 300_000))
			imagetest.Push(t, host+"/slow:1", img)
			store := open(t)
			load(t, store, map[string]v1.Image{
				"base:1":  imagetest.NewImage(t, base),
				"other:1": imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("other", "1"))),
			})
			pulled := make(chan error)
			go func() { // ends when the registry goes on
				_, err := store.Pull(t.Context(), Request{Ref: host + "/slow:1"})
				pulled <- err
			}()
			<-stalled
			waittest.Until(t, "its own small layer is there", func() bool { return countLayers(t, store) == 3 })
			for i, ref := range []string{"other:1", "base:1"} {
				if err := store.Remove(t.Context(), ref); err != nil {
					t.Error(err)
				}
				if got := countLayers(t, store); got != 2 {
					t.Errorf("%d images removed while a pull waits: %d layers, want the 2 that it needs", i+1, got)
				}
			}
			if left, err := os.ReadDir(store.path("trash")); err != nil || len(left) > 0 {
				t.Errorf("trash: %v, %v", left, err)
			}
			close(release)
			if err := <-pulled; err != nil {
				t.Fatal(err)
			}
			got, ok := store.Get(host + "/slow:1")
			if !ok || got.ID != imagetest.IDOf(t, img) || countLayers(t, store) != 3 {
				t.Errorf("after the pull: %v, %s, %d layers", ok, got.ID, countLayers(t, store))
			}
			if err := store.Remove(t.Context(), got.ID); err != nil {
				t.Error(err)
			}
			if left := left(t, store); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestWorkOfTheDead: the layers that a work needs, and its files, stay only while its process lives.
func TestWorkOfTheDead(t *testing.T) {
	store := newStore(t)
	chain := func(i int) string { return fmt.Sprintf("sha256:%064d", i) }
	for i := range 3 {
		if err := os.MkdirAll(store.LayerDir(chain(i)), 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"chainID":%q}`, chain(i))
		if err := os.WriteFile(filepath.Join(store.layerPath(chain(i)), "layer.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var works []*work
	for i := range 2 {
		w, err := store.layers.begin("")
		if err != nil {
			t.Fatal(err)
		}
		have, found, err := w.need([]manifest.Layer{{ChainID: chain(i)}, {ChainID: chain(9)}})
		if err != nil || !slices.Equal(found, []bool{true, false}) || have[0].ChainID != chain(i) {
			t.Errorf("need: got %v, %v, %v", have, found, err)
		}
		works = append(works, w)
	}
	if err := os.WriteFile(store.path("tmp", "import-of-an-earlier-version"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	collect := func(want ...string) {
		t.Helper()
		if err := store.GC(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := left(t, store); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	tmp := func(i int) string { return "tmp/" + filepath.Base(works[i].dir.Name()) }
	dirs := []string{tmp(0), tmp(1)}
	slices.Sort(dirs)
	collect(append([]string{"layers/" + manifest.HexOf(chain(0)), "layers/" + manifest.HexOf(chain(1))}, dirs...)...)
	if err := works[0].dir.Close(); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	collect("layers/"+manifest.HexOf(chain(1)), tmp(1))
	works[1].end()
	collect()
}

// TestNoNameWithoutLayers: an image whose layers are not there gets no name.
func TestNoNameWithoutLayers(t *testing.T) {
	store := newStore(t)
	p := &manifest.Plan{
		ID:     imagetest.AnyDigest,
		Config: &manifest.Config{},
		Layers: []manifest.Layer{{ChainID: imagetest.AnyDigest}},
	}
	if img, err := store.catalog.name([]*manifest.Plan{p}, false, store.layers); !errors.Is(err, manifest.ErrNotFound) || len(store.List()) > 0 {
		t.Errorf("got %v, %v", img, err)
	}
}

// TestPullsAndCollections run at once, in several stores on one directory as in several processes, with removals and
// cancelled pulls. No image lacks a layer, and in the end nothing is left.
func TestPullsAndCollections(t *testing.T) {
	host := imagetest.NewRegistry(t)
	base := imagetest.LayerTar(t, imagetest.File("base", "1"))
	second := imagetest.LayerTar(t, imagetest.File("second", "1"))
	const pullers, rounds = 6, 12
	for i := range pullers {
		imagetest.Push(t, fmt.Sprintf("%s/app%d:1", host, i), imagetest.NewImage(t, base, second, imagetest.LayerTar(t, imagetest.File("own", fmt.Sprint(i)))))
	}
	dir := newStore(t).dir
	ctx, cancel := context.WithCancel(t.Context())
	var collectors, all sync.WaitGroup
	for range 2 {
		store := newStore(t, func(c *Config) { c.Dir = dir })
		collectors.Go(func() {
			for ctx.Err() == nil {
				if err := store.GC(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range pullers {
		store := newStore(t, func(c *Config) { c.Dir = dir })
		ref := fmt.Sprintf("%s/app%d:1", host, i)
		all.Go(func() {
			for round := range rounds {
				early, stop := context.WithCancel(ctx)
				go stop() // a pull that ends anywhere
				_, _ = store.Pull(early, Request{Ref: ref, Tenant: "early"})
				if err := pullHoldRemove(ctx, store, ref, fmt.Sprint("box-", i)); err != nil {
					t.Errorf("%s, round %d: %v", ref, round, err)
				}
			}
		})
	}
	all.Wait()
	cancel()
	collectors.Wait()
	store := newStore(t, func(c *Config) { c.Dir = dir })
	waittest.Right(t, "nothing is left", func() string { // canceled pulls may still be ending
		for _, img := range store.List() {
			if err := store.Remove(t.Context(), img.ID); err != nil && !errors.Is(err, manifest.ErrNotFound) {
				return err.Error()
			}
		}
		if err := store.GC(t.Context()); err != nil {
			return err.Error()
		}
		return strings.Join(left(t, store), " ")
	})
}

// pullHoldRemove pulls an image, takes a lease of its layers as a container does, and removes the image.
func pullHoldRemove(ctx context.Context, store *Store, ref, lease string) error {
	img, err := store.Pull(ctx, Request{Ref: ref})
	if err != nil {
		return err
	}
	if err := store.Hold(lease, img.Layers); err != nil {
		return err
	}
	if err := store.Remove(ctx, img.ID); err != nil && !errors.Is(err, manifest.ErrNotFound) {
		return err
	}
	for i, layer := range img.Layers {
		if _, ok, err := store.layers.at(layer.ChainID); !ok || err != nil {
			return fmt.Errorf("layer %d is gone: %w", i, err)
		}
	}
	return store.Release(ctx, lease)
}
