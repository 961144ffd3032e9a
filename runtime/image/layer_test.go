// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/unpack"
)

func TestImplicitDirectoriesInherit(t *testing.T) {
	imagetest.NeedRoot(t)
	host := imagetest.NewRegistry(t)
	lower := imagetest.LayerTar(t,
		imagetest.Header(tar.Header{
			Typeflag: tar.TypeDir,
			Name:     "tmp/",
			Mode:     0o1777,
			Uid:      7,
			Gid:      8,
		}),
		imagetest.Header(tar.Header{Typeflag: tar.TypeDir, Name: "var/", Mode: 0o700}))
	imagetest.Push(t, host+"/a:1",
		imagetest.NewImage(t, lower, imagetest.LayerTar(t, imagetest.File("x", "")), imagetest.LayerTar(t, imagetest.File("tmp/f", "1"), imagetest.File("new/f", "1"))))
	s := newStore(t)
	img, err := s.Pull(t.Context(), Request{Ref: host + "/a:1"})
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(s.LayerDir(img.Layers[2].ChainID), "tmp"))
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	if fi.Mode() != os.ModeDir|os.ModeSticky|0o777 || st.Uid != 7 || st.Gid != 8 {
		t.Errorf("tmp: got %v %d:%d, want that of the layer below", fi.Mode(), st.Uid, st.Gid)
	}
}

// TestReserveStaysFree unpacks more than fits on a small disk: a clear error comes before the disk is full, and nothing
// stays.
func TestReserveStaysFree(t *testing.T) {
	imagetest.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,nr_inodes=20000"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	store := newStore(t, func(c *Config) { c.Dir = dir })
	lowest := int64(1 << 60)
	watch := make(chan struct{})
	watched := make(chan struct{})
	go func() { // ends when watch is closed
		defer close(watched)
		for {
			var st unix.Statfs_t
			if unix.Statfs(dir, &st) == nil {
				lowest = min(lowest, int64(st.Bavail)*st.Bsize)
			}
			select {
			case <-watch:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	big := strings.Repeat("x", 12<<20)
	many := make([]imagetest.Entry, 0, 20000)
	for i := range cap(many) {
		many = append(many, imagetest.File(fmt.Sprintf("f%d", i), ""))
	}
	host := imagetest.NewRegistry(t)
	for tag, l := range map[string][]imagetest.Entry{
		"files":  {imagetest.File("a", big), imagetest.File("b", big), imagetest.File("c", big), imagetest.File("d", big), imagetest.File("e", big)},
		"one":    {imagetest.File("a", strings.Repeat("x", 60<<20))},
		"inodes": many,
	} {
		imagetest.Push(t, host+"/big:"+tag, imagetest.NewImage(t, imagetest.LayerTar(t, l...)))
		_, err := store.Pull(t.Context(), Request{Ref: host + "/big:" + tag})
		if !errors.Is(err, unpack.ErrNoSpace) || !strings.Contains(err.Error(), "remove images") {
			t.Errorf("%s: %v, want %v", tag, err, unpack.ErrNoSpace)
		}
	}
	close(watch)
	<-watched
	if want := int64(16 << 20); lowest < want {
		t.Errorf("free space fell to %d, %d are reserved", lowest, want)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "tmp")); len(left) != 0 || err != nil {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
	imagetest.Push(t, host+"/small:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "fits"))))
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/small:1"}); err != nil {
		t.Errorf("an image that fits: %v", err)
	}
}
