// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// jail makes a root and a victim tree next to it, and returns a function that fails the test when the victim changed.
func jail(t *testing.T) (d *Dir, root, victim string, unchanged func()) {
	t.Helper()
	base := t.TempDir()
	root = filepath.Join(base, "root")
	victim = filepath.Join(base, "victim")
	for _, dir := range []string{root, victim, filepath.Join(victim, "dir")} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(victim, "file"), []byte("precious"), 0o640))
	must(t, os.WriteFile(filepath.Join(victim, "dir", "inner"), []byte("precious"), 0o600))
	before := snapshotOf(t, victim)
	d, err := Open(root)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d, root, victim, func() {
		t.Helper()
		if after := snapshotOf(t, victim); !slices.Equal(before, after) {
			t.Errorf("the tree outside changed:\nbefore %v\nafter  %v", before, after)
		}
	}
}

// snapshotOf lists a tree with everything that could be changed of it.
func snapshotOf(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := statAt(unix.AT_FDCWD, p)
		if err != nil {
			return err
		}
		b, _ := os.ReadFile(p)
		n, _ := unix.Llistxattr(p, nil)
		out = append(out, strings.Join([]string{
			p, fmt.Sprintf("%o %d:%d %d links, %d bytes of xattrs", i.Mode, i.UID, i.GID, i.Nlink, n),
			i.Modified.String(), string(b),
		}, "|"))
		return nil
	}))
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestLinksStayInside tries every call through a link that points at the victim, as a parent and as the last component.
func TestLinksStayInside(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(d *Dir, p string) error
	}{
		{"OpenFile", func(d *Dir, p string) error {
			_, err := d.OpenFile(p, os.O_RDWR, 0)
			return err
		}},
		{"OpenFile create", func(d *Dir, p string) error {
			_, err := d.OpenFile(p, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
			return err
		}},
		{"OpenDir", func(d *Dir, p string) error {
			_, err := d.OpenDir(p)
			return err
		}},
		{"OpenPath", func(d *Dir, p string) error {
			_, err := d.OpenPath(p)
			return err
		}},
		{"ReadFile", func(d *Dir, p string) error {
			_, err := d.ReadFile(p, 1<<20)
			return err
		}},
		{"WriteFile", func(d *Dir, p string) error { return d.WriteFile(p, []byte("x"), 0o600) }},
		{"Names", func(d *Dir, p string) error {
			_, err := d.Names(p, 0)
			return err
		}},
		{"Stat", func(d *Dir, p string) error {
			_, err := d.Stat(p)
			return err
		}},
		{"Lstat", func(d *Dir, p string) error {
			_, err := d.Lstat(p)
			return err
		}},
		{"Mkdir", func(d *Dir, p string) error { return d.Mkdir(p, 0o700) }},
		{"MkdirAll", func(d *Dir, p string) error { return d.MkdirAll(p+"/x/y", 0o700) }},
		{"Remove", func(d *Dir, p string) error { return d.Remove(p) }},
		{"RemoveAll", func(d *Dir, p string) error { return d.RemoveAll(p) }},
		{"RemoveContents", func(d *Dir, p string) error { return d.RemoveContents(p) }},
		{"Rename from", func(d *Dir, p string) error { return d.Rename(p, "taken") }},
		{"Rename to", func(d *Dir, p string) error { return d.Rename("plain", p) }},
		{"Symlink", func(d *Dir, p string) error { return d.Symlink("x", p) }},
		{"Link from", func(d *Dir, p string) error { return d.Link(p, "second") }},
		{"Link to", func(d *Dir, p string) error { return d.Link("plain", p) }},
		{"Mknod", func(d *Dir, p string) error { return d.Mknod(p, unix.S_IFIFO|0o600, 0) }},
		{"Lchown", func(d *Dir, p string) error { return d.Lchown(p, os.Getuid(), os.Getgid()) }},
		{"Chmod", func(d *Dir, p string) error { return d.Chmod(p, 0o777) }},
		{"Utimes", func(d *Dir, p string) error { return d.Utimes(p, time.Unix(1, 0), time.Unix(1, 0)) }},
		{"Setxattr", func(d *Dir, p string) error { return d.Setxattr(p, "trusted.x", []byte("1")) }},
		{"Removexattr", func(d *Dir, p string) error { return d.Removexattr(p, "trusted.x") }},
		{"Walk", func(d *Dir, p string) error {
			return d.Walk(p, WalkOptions{}, func(e *Entry) error {
				_ = e.Lchown(os.Getuid(), os.Getgid())
				return errors.Join(e.Chmod(0o777))
			})
		}},
	} {
		for _, p := range []string{
			"abs/file", "abs/new", "up/file", "up/dir", "absfile", "upfile", "loop", "abs", "up", "../victim/file",
			"/../victim/file", "proc/root", "plain/x",
		} {
			t.Run(c.name+" "+strings.ReplaceAll(p, "/", "_"), func(t *testing.T) {
				dir, root, victim, unchanged := jail(t)
				for name, target := range map[string]string{
					"abs":     victim,
					"up":      "../victim",
					"absfile": victim + "/file",
					"upfile":  "../victim/file",
					"loop":    "loop",
					"proc":    "/proc/self",
				} {
					must(t, os.Symlink(target, filepath.Join(root, name)))
				}
				must(t, os.WriteFile(filepath.Join(root, "plain"), nil, 0o600))
				if err := c.call(dir, p); err == nil && strings.Contains(p, "loop/") {
					t.Errorf("%s of %s succeeded", c.name, p)
				}
				unchanged()
			})
		}
	}
}

func TestBeneathRefusesLinksThatLeave(t *testing.T) {
	_, root, victim, _ := jail(t)
	dir, err := OpenBeneath(root)
	must(t, err)
	defer func() { must(t, dir.Close()) }()
	must(t, os.Symlink(victim, filepath.Join(root, "abs")))
	must(t, os.Symlink("../victim", filepath.Join(root, "up")))
	must(t, os.Mkdir(filepath.Join(root, "dir"), 0o755))
	must(t, os.Symlink("dir", filepath.Join(root, "in")))
	for _, p := range []string{"abs", "up", "abs/file", "up/file"} {
		_, err := dir.OpenPath(p)
		is(t, p, err, unix.EXDEV)
		is(t, "mkdir "+p, dir.MkdirAll(p+"/x", 0o755), unix.EXDEV)
	}
	must(t, dir.MkdirAll("in/x", 0o755))
	i, err := dir.Lstat("dir/x")
	if err != nil || !i.IsDir() {
		t.Errorf("dir/x: %+v, %v", i, err)
	}
}

func TestLinkInsideIsFollowed(t *testing.T) {
	dir, root, _, _ := jail(t)
	must(t, os.MkdirAll(filepath.Join(root, "usr/etc"), 0o755))
	must(t, os.Symlink("/usr/etc", filepath.Join(root, "etc")))
	must(t, dir.WriteFile("etc/passwd", []byte("root"), 0o644))
	b, err := dir.ReadFile("usr/etc/passwd", 4)
	if string(b) != "root" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := dir.ReadFile("usr/etc/passwd", 3); err == nil {
		t.Error("a limit of 3 bytes let 4 through")
	}
	target, err := dir.Readlink("etc")
	if target != "/usr/etc" || err != nil {
		t.Errorf("readlink: %q, %v", target, err)
	}
}

func TestOpenFileOpensNothingElse(t *testing.T) {
	dir, root, _, _ := jail(t)
	must(t, dir.Mknod("fifo", unix.S_IFIFO|0o666, 0))
	must(t, dir.Mknod("sock", unix.S_IFSOCK|0o666, 0))
	must(t, dir.Mkdir("dir", 0o755))
	must(t, dir.Symlink("nowhere", "dangling"))
	names := []string{"fifo", "sock", "dir", "."}
	if os.Getuid() == 0 {
		must(t, dir.Mknod("null", unix.S_IFCHR|0o666, unix.Mkdev(1, 3)))
		names = append(names, "null")
	}
	for _, n := range names {
		for _, flag := range []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREATE} {
			_, err := dir.OpenFile(n, flag, 0o600)
			is(t, n, err, ErrNotRegular)
		}
	}
	_, err := dir.OpenFile("dangling", os.O_WRONLY|os.O_CREATE, 0o600)
	is(t, "create through a dangling link", err, fs.ErrExist)
	if _, err := os.Lstat(filepath.Join(root, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("made the target of a dangling link")
	}
	must(t, dir.WriteFile("file", []byte("old"), 0o600))
	_, err = dir.OpenFile("file", os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_TRUNC, 0o600)
	is(t, "create exclusively", err, fs.ErrExist)
	if b, _ := dir.ReadFile("file", 10); string(b) != "old" {
		t.Errorf("a refused open left %q", b)
	}
	must(t, dir.WriteFile("file", []byte("new"), 0o600))
	if b, _ := dir.ReadFile("file", 10); string(b) != "new" {
		t.Errorf("wrote new, read %q", b)
	}
}

func TestAttributesOfTheLinkItself(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to change owners")
	}
	dir, root, _, _ := jail(t)
	must(t, dir.WriteFile("file", nil, 0o600))
	must(t, dir.Symlink("file", "link"))
	must(t, dir.Lchown("link", 7, 8))
	when := time.Unix(1234567, 89)
	must(t, dir.Utimes("link", when, when))
	is(t, "chmod of a link", dir.Chmod("link", 0o777), unix.ELOOP)
	l, err := dir.Lstat("link")
	must(t, err)
	f, err := dir.Lstat("file")
	must(t, err)
	if l.UID != 7 || l.GID != 8 || !l.Modified.Equal(when) || f.UID != 0 || f.Modified.Equal(when) ||
		f.Perm() != 0o600 {
		t.Errorf("link %+v, file %+v", l, f)
	}
	must(t, dir.Setxattr("link", "trusted.mark", []byte("of the link")))
	names, err := dir.Listxattr("file")
	if len(names) != 0 || err != nil {
		t.Errorf("the link's attribute went to the file: %v, %v", names, err)
	}
	v, err := dir.Getxattr("link", "trusted.mark")
	if string(v) != "of the link" || err != nil {
		t.Errorf("link's attribute: %q, %v", v, err)
	}
	must(t, dir.Removexattr("link", "trusted.mark"))
	must(t, dir.Chmod("file", 0o4711))
	if fi, _ := os.Lstat(filepath.Join(root, "file")); fi.Mode() != fs.ModeSetuid|0o711 {
		t.Errorf("mode %v", fi.Mode())
	}
	must(t, dir.Chmod(".", 0o1777))
	must(t, dir.Lchown(".", 3, 4))
	must(t, dir.Utimes(".", when, when))
	if i, _ := dir.Lstat("."); i.Perm() != 0o1777 || i.UID != 3 || !i.Modified.Equal(when) {
		t.Errorf("root %+v", i)
	}
	is(t, "mkdir of the root", dir.Mkdir("..", 0o755), unix.EBUSY)
}

func TestMkdirAllExact(t *testing.T) {
	dir, root, _, _ := jail(t)
	must(t, dir.Mkdir("a", 0o700))
	made, err := dir.MkdirAllExact("a/b/c", fs.ModeSetgid|0o777)
	if !slices.Equal(made, []string{"a/b", "a/b/c"}) || err != nil {
		t.Errorf("made %v, %v", made, err)
	}
	for _, p := range made {
		if fi, _ := os.Lstat(filepath.Join(root, p)); fi.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 {
			t.Errorf("%s: %v", p, fi.Mode())
		}
	}
	must(t, dir.WriteFile("file", nil, 0o600))
	is(t, "through a file", dir.MkdirAll("file/x", 0o755), unix.ENOTDIR)
	is(t, "on a file", dir.MkdirAll("file", 0o755), unix.ENOTDIR)
}

func TestWalk(t *testing.T) {
	dir, _, victim, unchanged := jail(t)
	must(t, dir.MkdirAll("a/b", 0o755))
	must(t, dir.WriteFile("a/b/file", nil, 0o600))
	must(t, dir.Symlink(victim, "a/out"))
	list := func(o WalkOptions) (out []string) {
		must(t, dir.Walk(".", o, func(e *Entry) error {
			out = append(out, e.Path)
			if e.Path == "a/out" && !e.Info.IsSymlink() {
				t.Errorf("a/out: %+v", e.Info)
			}
			return nil
		}))
		return out
	}
	first := list(WalkOptions{})
	last := list(WalkOptions{After: true})
	if slices.Index(first, "a/b") > slices.Index(first, "a/b/file") || slices.Index(last, "a/b") < slices.Index(last,
		"a/b/file") {
		t.Errorf("order: %v and %v", first, last)
	}
	slices.Sort(first)
	slices.Sort(last)
	want := []string{".", "a", "a/b", "a/b/file", "a/out"}
	if !slices.Equal(first, want) || !slices.Equal(last, want) {
		t.Errorf("walked %v and %v, want %v", first, last, want)
	}
	n := 0
	must(t, dir.Walk("a", WalkOptions{}, func(e *Entry) error {
		n++
		if e.Path == "a/b" {
			return fs.SkipDir
		}
		return nil
	}))
	if n != 3 {
		t.Errorf("SkipDir: %d entries", n)
	}
	must(t, dir.Walk("a/b/file", WalkOptions{}, func(e *Entry) error { return e.Chmod(0o640) }))
	if i, _ := dir.Lstat("a/b/file"); i.Perm() != 0o640 {
		t.Errorf("mode %o", i.Perm())
	}
	unchanged()
}

// TestWalkNoticesASwap replaces each entry between the look and the change.
func TestWalkNoticesASwap(t *testing.T) {
	d, root, victim, unchanged := jail(t)
	must(t, d.MkdirAll("a", 0o755))
	must(t, d.WriteFile("a/file", nil, 0o600))
	must(t, d.Walk("a/file", WalkOptions{}, func(*Entry) error { return nil }))
	must(t, d.Walk("a", WalkOptions{}, func(e *Entry) error {
		if e.Path != "a/file" {
			return nil
		}
		must(t, os.Remove(filepath.Join(root, e.Path)))
		must(t, os.Symlink(victim+"/file", filepath.Join(root, e.Path)))
		is(t, "chmod", e.Chmod(0o777), ErrChanged)
		is(t, "chown", e.Lchown(1, 1), ErrChanged)
		return nil
	}))
	unchanged()
}

func TestDeepTree(t *testing.T) {
	dir, root, _, _ := jail(t)
	must(t, dir.Mkdir("deep", 0o755))
	// 3,000 levels cannot be made or removed by name.
	fd, err := unix.Open(filepath.Join(root, "deep"), unix.O_PATH, 0)
	must(t, err)
	for range 3000 {
		must(t, unix.Mkdirat(fd, "dddddd", 0o755))
		f, err := unix.Open(filepath.Join(procPath(fd), "a"), unix.O_CREAT|unix.O_WRONLY, 0o600)
		must(t, err)
		must(t, unix.Close(f))
		next, err := unix.Openat(fd, "dddddd", unix.O_PATH, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	is(t, "walk", dir.Walk("deep", WalkOptions{}, func(*Entry) error { return nil }), ErrTooDeep)
	open := openFiles(t)
	must(t, dir.RemoveAll("deep"))
	if _, err := dir.Lstat("deep"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deep is still there: %v", err)
	}
	if now := openFiles(t); now > open {
		t.Errorf("%d descriptors open, %d before", now, open)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(ents)
}

func TestRemove(t *testing.T) {
	dir, root, victim, unchanged := jail(t)
	must(t, dir.MkdirAll("a/b/c", 0o755))
	must(t, dir.Symlink(victim, "a/b/out"))
	for _, n := range []string{"a/1", "a/b/2", "a/b/c/3"} {
		must(t, dir.WriteFile(n, nil, 0))
	}
	is(t, "remove what is not empty", dir.Remove("a"), unix.ENOTEMPTY)
	must(t, dir.RemoveContents("a"))
	names, err := dir.Names("a", 0)
	if len(names) != 0 || err != nil {
		t.Errorf("left %v, %v", names, err)
	}
	must(t, dir.Remove("a"))
	must(t, dir.RemoveAll("a/not/there"))
	is(t, "remove the root", dir.RemoveAll("/"), unix.EBUSY)
	must(t, dir.Symlink(victim, "out"))
	must(t, dir.RemoveAll("out"))
	if ents, _ := os.ReadDir(root); len(ents) != 0 {
		t.Errorf("left %v", ents)
	}
	unchanged()
}

func TestMountsAreLeftAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir, root, victim, unchanged := jail(t)
	must(t, dir.MkdirAll("a/mount", 0o755))
	must(t, dir.WriteFile("a/bound", nil, 0o600))
	for from, to := range map[string]string{victim: "a/mount", victim + "/file": "a/bound"} {
		at := filepath.Join(root, to)
		must(t, unix.Mount(from, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	}
	is(t, "RemoveAll", dir.RemoveAll("a"), unix.EBUSY)
	var seen []string
	must(t, dir.Walk("a", WalkOptions{}, func(e *Entry) error {
		seen = append(seen, e.Path)
		return nil
	}))
	if !slices.Equal(seen, []string{"a"}) {
		t.Errorf("walked %v", seen)
	}
	n := 0
	must(t, dir.Walk("a", WalkOptions{CrossMounts: true}, func(*Entry) error {
		n++
		return nil
	}))
	if n != 6 {
		t.Errorf("with mounts: %d entries", n)
	}
	unchanged()
}

func TestNamesAreBounded(t *testing.T) {
	d, _, _, _ := jail(t)
	for _, n := range []string{"a", "b", "c"} {
		must(t, d.Mkdir(n, 0o755))
	}
	if _, err := d.Names("", 2); err == nil {
		t.Error("three names within a limit of two")
	}
	names, err := d.Names("", 3)
	if len(names) != 3 || err != nil {
		t.Errorf("names %v, %v", names, err)
	}
}
