// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// race renames and replaces x/dir and x/file in root by links to the victim, and back, until stop is called.
func race(t *testing.T, root, victim string) (stop func()) {
	t.Helper()
	x := filepath.Join(root, "x")
	must(t, os.MkdirAll(filepath.Join(x, "dir", "sub"), 0o777))
	must(t, os.WriteFile(filepath.Join(x, "file"), []byte("own"), 0o666))
	must(t, os.Symlink(victim, filepath.Join(x, "dirlink")))
	must(t, os.Symlink(victim+"/file", filepath.Join(x, "filelink")))
	must(t, os.Symlink("../../victim", filepath.Join(x, "uplink")))
	xfd, err := unix.Open(x, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	dirfd, err := unix.Open(filepath.Join(x, "dir"), unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	rootfd, err := unix.Open(filepath.Dir(root), unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	var end atomic.Bool
	var done sync.WaitGroup
	swap := func(afd int, a, b string) {
		done.Go(func() {
			for !end.Load() {
				_ = unix.Renameat2(afd, a, xfd, b, unix.RENAME_EXCHANGE)
			}
		})
	}
	swap(xfd, "dir", "dirlink")
	swap(xfd, "file", "filelink")
	swap(xfd, "dir", "uplink")
	swap(dirfd, "sub", "uplink")
	// moves a directory out of the root and back, so that ".." leads elsewhere; makes what is gone again
	done.Go(func() {
		for !end.Load() {
			_ = unix.Renameat(xfd, "dir", rootfd, "moved")
			_ = unix.Renameat(rootfd, "moved", xfd, "dir")
			_ = unix.Mkdirat(dirfd, "sub", 0o777)
			if fd, err := unix.Openat(xfd, "file", unix.O_CREAT|unix.O_EXCL, 0o666); err == nil {
				_ = unix.Close(fd)
			}
		}
	})
	return func() {
		end.Store(true)
		done.Wait()
		for _, fd := range []int{xfd, dirfd, rootfd} {
			must(t, unix.Close(fd))
		}
	}
}

// TestRace runs every call while somebody swaps directories and files for links out of the root all the time.
func TestRace(t *testing.T) {
	dir, root, victim, unchanged := jail(t)
	defer unchanged()
	stop := race(t, root, victim)
	defer stop()
	paths := []string{
		"x/dir", "x/file", "x/dir/file", "x/dir/dir", "x/dir/sub/file", "x/uplink/file", "x/dirlink/dir/inner",
		"x/dir/sub/dir",
	}
	until := time.Now().Add(3 * time.Second)
	worked := 0
	for n := 0; time.Now().Before(until); n++ {
		p := paths[n%len(paths)]
		for _, err := range []error{
			dir.Chmod(p, 0o777),
			dir.Lchown(p, os.Getuid(), os.Getgid()),
			dir.Utimes(p, time.Unix(1, 0), time.Unix(1, 0)),
			dir.Mkdir(p+"/made", 0o777),
			dir.MkdirAll(p+"/made/below", 0o777),
			dir.Symlink("nothing", p+"/link"),
			dir.Link("x/file", p+"/second"),
			dir.Mknod(p+"/fifo", unix.S_IFIFO|0o666, 0),
			dir.Rename(p+"/made", p+"/renamed"),
			dir.Setxattr(p, "user.x", []byte("x")),
			readsOwn(t, dir, p),
			writes(dir, p),
			dir.Walk("x", WalkOptions{}, func(e *Entry) error {
				_ = e.Chmod(e.Info.Perm() | 0o777)
				_ = e.Lchown(os.Getuid(), os.Getgid())
				return nil
			}),
			dir.Remove(p + "/second"),
			dir.RemoveAll(p + "/renamed"),
			dir.RemoveContents(p),
		} {
			if err == nil {
				worked++
			}
		}
	}
	if worked == 0 {
		t.Error("no call ever worked: the race tests nothing")
	}
}

// readsOwn fails the test when a read shows the victim's bytes.
func readsOwn(t *testing.T, d *Dir, p string) error {
	b, err := d.ReadFile(p, 100)
	if string(b) == "precious" {
		t.Errorf("%s was read from outside", p)
	}
	return err
}

func writes(d *Dir, p string) error {
	f, err := d.OpenFile(p, os.O_WRONLY|os.O_CREATE, fs.FileMode(0o666))
	if err != nil {
		return err
	}
	_, err = f.WriteString("own")
	return errors.Join(err, f.Close())
}
