// SPDX-License-Identifier: Apache-2.0

package image

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"keelson/runtime/image/imagetest"
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

func names(s *Store) []string {
	var out []string
	for _, i := range s.List() {
		out = append(out, strings.Join(i.RepoTags, ",")+" "+i.ID[7:15])
	}
	slices.Sort(out)
	return out
}

func TestPull(t *testing.T) {
	host := imagetest.NewRegistry(t)
	img := imagetest.NewImage(t,
		imagetest.LayerTar(t, imagetest.File("etc/", ""), imagetest.File("etc/a", "1"), imagetest.File("bin/x", "run")),
		imagetest.LayerTar(t, imagetest.File("etc/b", "2")))
	imagetest.Push(t, host+"/team/app:v1", img)
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
	if got.ID != imagetest.IDOf(t, img) {
		t.Errorf("ID: got %s, want %s", got.ID, imagetest.IDOf(t, img))
	}
	if want := []string{host + "/team/app:v1"}; !slices.Equal(got.RepoTags, want) {
		t.Errorf("RepoTags: got %q, want %q", got.RepoTags, want)
	}
	if want := []string{host + "/team/app@" + imagetest.DigestOf(t, img)}; !slices.Equal(got.RepoDigests, want) {
		t.Errorf("RepoDigests: got %q, want %q", got.RepoDigests, want)
	}
	if !slices.Equal(got.Config.Env, []string{"A=b"}) || !slices.Equal(got.Config.Cmd, []string{"/x"}) {
		t.Errorf("Config: got %+v", got.Config)
	}
	if last[0] != last[1] || last[0] == 0 {
		t.Errorf("progress ended at %d of %d bytes", last[0], last[1])
	}
	want := []string{"bin/", "bin/x=run", "etc/", "etc/a=1"}
	if d := cmp.Diff(want, imagetest.Tree(t, store.LayerDir(got.Layers[0].ChainID))); d != "" {
		t.Errorf("first layer (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"etc/", "etc/b=2"}, imagetest.Tree(t, store.LayerDir(got.Layers[1].ChainID))); d != "" {
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
