// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

func countLayers(t testing.TB, s *Store) int {
	t.Helper()
	e, err := os.ReadDir(s.path("layers"))
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func load(t testing.TB, s *Store, images map[string]v1.Image) {
	t.Helper()
	if _, err := s.Import(t.Context(), bytes.NewReader(dockerSave(t, images))); err != nil {
		t.Fatal(err)
	}
}

func TestRemove(t *testing.T) {
	store := newStore(t)
	base := imagetest.LayerTar(t, imagetest.File("base", "1"))
	image := imagetest.NewImage(t, base, imagetest.LayerTar(t, imagetest.File("a", "1")))
	b := imagetest.NewImage(t, base, imagetest.LayerTar(t, imagetest.File("b", "1")))
	load(t, store, map[string]v1.Image{"a:1": image, "a:2": image, "b:1": b})
	step := func(ref string, wantNames []string, wantLayers int) {
		t.Helper()
		if err := store.Remove(t.Context(), ref); err != nil {
			t.Errorf("Remove(%q): %v", ref, err)
		}
		if got := names(store); !slices.Equal(got, wantNames) {
			t.Errorf("after Remove(%q): got %q, want %q", ref, got, wantNames)
		}
		if got := countLayers(t, store); got != wantLayers {
			t.Errorf("after Remove(%q): %d layers, want %d", ref, got, wantLayers)
		}
	}
	nameA := " " + imagetest.IDOf(t, image)[7:15]
	nameB := " " + imagetest.IDOf(t, b)[7:15]
	step("a:2", []string{"docker.io/library/a:1" + nameA, "docker.io/library/b:1" + nameB}, 3)
	step("a:1", []string{"docker.io/library/b:1" + nameB}, 2)
	if err := store.Remove(t.Context(), "a:1"); !errors.Is(err, manifest.ErrNotFound) {
		t.Errorf("removed twice: got %v", err)
	}
	load(t, store, map[string]v1.Image{"a:1": image, "a:2": image})
	step(imagetest.IDOf(t, image), []string{"docker.io/library/b:1" + nameB}, 2)
	step("b:1", nil, 0)
	if left, err := os.ReadDir(store.path("trash")); err != nil || len(left) > 0 {
		t.Errorf("trash: %v, %v", left, err)
	}
}

func TestTagMoves(t *testing.T) {
	s := newStore(t)
	a := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	b := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("b", "1")))
	load(t, s, map[string]v1.Image{"app:1": a})
	load(t, s, map[string]v1.Image{"app:1": b})
	if img, ok := s.Get("app:1"); !ok || img.ID != imagetest.IDOf(t, b) {
		t.Errorf("app:1: got %s, %v", img.ID, ok)
	}
	if img, ok := s.Get(imagetest.IDOf(t, a)); !ok || len(img.RepoTags) > 0 {
		t.Errorf("the image that had the tag: got %q, %v", img.RepoTags, ok)
	}
}

func TestHeldLayersSurvive(t *testing.T) {
	store := newStore(t)
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")))
	load(t, store, map[string]v1.Image{"a:1": img})
	got, _ := store.Get("a:1")
	if err := store.Hold("box", got.Layers); err != nil {
		t.Fatal(err)
	}
	if err := store.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	if countLayers(t, store) != 1 {
		t.Error("a held layer went with its image")
	}
	for range 2 {
		if err := store.Release(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
	}
	if countLayers(t, store) != 0 {
		t.Error("the layer outlived its last lease")
	}
	if err := store.Hold("late", got.Layers); !errors.Is(err, manifest.ErrNotFound) {
		t.Errorf("Hold of a layer that is gone: got %v", err)
	}
	for _, id := range []string{"", "..", "a/b"} {
		if err := store.Hold(id, nil); err == nil {
			t.Errorf("Hold(%q): got no error", id)
		}
	}
}

func TestSecondProcess(t *testing.T) {
	store := newStore(t)
	st, err := Open(Config{Dir: store.dir})
	if err != nil {
		t.Fatal(err)
	}
	load(t, st, map[string]v1.Image{"x:1": imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("x", "1")))})
	img, ok := store.Get("x:1")
	if !ok {
		t.Fatal("the first does not see what the second imported")
	}
	if err := store.Hold("box", img.Layers); err != nil {
		t.Fatal(err)
	}
	if err := st.Remove(t.Context(), "x:1"); err != nil {
		t.Fatal(err)
	}
	if _, ok := store.Get("x:1"); ok || countLayers(t, store) != 1 {
		t.Errorf("after the second removed it: found %v, %d layers, want the held one", ok, countLayers(t, store))
	}
}

func TestDamagedIndexIsAnError(t *testing.T) {
	s := newStore(t)
	for _, text := range []string{"{", `{"version":2}`, `{"version":1,"images":[{"id":"../../x"}]}`} {
		if err := os.WriteFile(s.path("images.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: s.dir}); err == nil {
			t.Errorf("index %q: got no error", text)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s := newStore(b)
	load(b, s, map[string]v1.Image{"a:1": imagetest.NewImage(b, imagetest.LayerTar(b, imagetest.File("a", "1")))})
	for b.Loop() {
		if _, ok := s.Get("a:1"); !ok {
			b.Fatal("not found")
		}
	}
}

// TestLayersOfFailedPulls: the complete layers of a failed pull are collected when another image needs the space.
func TestLayersOfFailedPulls(t *testing.T) {
	imagetest.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	store := newStore(t, func(c *Config) { c.Dir = dir })
	t.Cleanup(store.Close)
	large := strings.Repeat("x", 30<<20)
	broken := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", large)), imagetest.LayerTar(t, imagetest.File("b", "never arrives")))
	all, err := broken.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := all[1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.String()) {
			next.ServeHTTP(w, r)
			return
		}
		for countLayers(t, store) == 0 && r.Context().Err() == nil { // the first layer is complete when the second one fails
			time.Sleep(time.Millisecond)
		}
		http.Error(w, "no", http.StatusNotFound)
	})
	imagetest.Push(t, host+"/broken:1", broken)
	imagetest.Push(t, host+"/whole:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("c", large))))
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/broken:1"}); err == nil || countLayers(t, store) != 1 {
		t.Fatalf("pull of the broken image: %v, %d layers, want an error and 1", err, countLayers(t, store))
	}
	store.collector.mu.Lock()
	if store.collector.tidy == nil {
		t.Error("no collection is planned after a failed pull")
	}
	store.collector.mu.Unlock()
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/whole:1"}); err != nil {
		t.Errorf("an image that fits without the layer of the broken one: %v", err)
	}
	if got := countLayers(t, store); got != 1 {
		t.Errorf("%d layers, want 1", got)
	}
}

// TestTidyLater: layers that no image needs are collected some minutes after a failed pull, once for many of them.
func TestTidyLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		unnamed := store.LayerDir("sha256:" + strings.Repeat("0", 64))
		if err := os.MkdirAll(unnamed, 0o700); err != nil {
			t.Fatal(err)
		}
		store.collector.tidyLater()
		time.Sleep(tidyAfter - time.Second)
		store.collector.tidyLater()
		synctest.Wait()
		if got := countLayers(t, store); got != 1 {
			t.Errorf("before the time: %d layers, want 1", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := countLayers(t, store); got != 0 || store.collector.tidy != nil {
			t.Errorf("%d layers are left, planned again: %v", got, store.collector.tidy != nil)
		}
		store.collector.tidyLater()
		store.Close()
		if store.collector.tidy != nil {
			t.Error("a collection is planned after Close")
		}
	})
}
