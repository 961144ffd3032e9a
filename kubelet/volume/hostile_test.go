// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

func hasGroup(st fs.FileInfo, gid int) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Gid) == gid
}

func withGroup(p *corev1.Pod, gid int64) *corev1.Pod {
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
	return p
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts and ownership")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func stat(t *testing.T, p string) fs.FileInfo {
	t.Helper()
	fi, err := os.Lstat(p)
	must(t, err)
	return fi
}

// victim makes a tree that must stay as it is.
func victim(t *testing.T) (dir string, unchanged func()) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	for _, d := range []string{"sub", "sub/deep"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	for _, f := range []string{"file", "sub/file", "sub/deep/file"} {
		must(t, os.WriteFile(filepath.Join(dir, f), []byte("precious"), 0o600))
	}
	return dir, func() {
		t.Helper()
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			must(t, err)
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = fs.ModeDir | 0o700
			}
			if fi := stat(t, p); fi.Mode() != want || !hasGroup(fi, 0) {
				t.Errorf("outside: %s is %v of group %d", p, fi.Mode(), fi.Sys().(*syscall.Stat_t).Gid)
			}
			return nil
		}))
	}
}

// TestOwnershipIsGivenOnce: the files of an emptyDir are the pod's own after its start, whatever else changes.
func TestOwnershipIsGivenOnce(t *testing.T) {
	needRoot(t)
	o := &objects{maps: map[string]map[string]string{"cm": {"k": "1"}}}
	m := manager(t, o)
	out, unchanged := victim(t)
	pod := withGroup(volumes(
		vol("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		vol("mem", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}),
		vol("cm", corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
		}),
	), 1001)
	setUp(t, m, pod)
	for _, name := range []string{"disk", "mem"} {
		dir := where(t, m, pod, name)
		must(t, os.WriteFile(filepath.Join(dir, "private"), nil, 0o600))
		must(t, os.Chown(filepath.Join(dir, "private"), 5, 5))
		must(t, os.Symlink(out, filepath.Join(dir, "link")))
		must(t, os.Chmod(dir, 0o700))
	}
	o.maps["cm"] = map[string]string{"k": "2"}
	setUp(t, m, pod)
	again := New(Config{Dir: m.dir, Memory: m.memory, Sources: o, Log: m.log}) // the kubelet restarts
	must(t, again.Prepare())
	setUp(t, again, pod)
	for _, name := range []string{"disk", "mem"} {
		dir := where(t, m, pod, name)
		if fi := stat(t, filepath.Join(dir, "private")); fi.Mode() != 0o600 || !hasGroup(fi, 5) {
			t.Errorf("%s: the pod's file is now %v", name, fi.Mode())
		}
		if fi := stat(t, dir); fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: the pod's directory is now %v", name, fi.Mode())
		}
	}
	data := filepath.Join(where(t, m, pod, "cm"), "..data")
	target, err := os.Readlink(data)
	must(t, err)
	for path, want := range map[string]fs.FileMode{
		where(t, m, pod, "cm"):                         fs.ModeDir | fs.ModeSetgid | 0o777,
		filepath.Join(filepath.Dir(data), target):      fs.ModeDir | fs.ModeSetgid | 0o755,
		filepath.Join(filepath.Dir(data), target, "k"): 0o644,
	} {
		if fi := stat(t, path); fi.Mode() != want || !hasGroup(fi, 1001) {
			t.Errorf("%s: %v, want %v of group 1001", path, fi.Mode(), want)
		}
	}
	must(t, m.TearDown(t.Context(), "u"))
	setUp(t, m, pod) // a volume that is made again is set up again
	if fi := stat(t, where(t, m, pod, "disk")); fi.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 || !hasGroup(fi, 1001) {
		t.Errorf("made again: %v", fi.Mode())
	}
	unchanged()
}

// renamer swaps names in dir for links to target until stop is called.
func renamer(t *testing.T, dir, target string) (stop func()) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o777))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o666))
	for link, to := range map[string]string{"l1": target + "/sub", "l2": target + "/file", "l3": target} {
		must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	root, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	sub, err := unix.Open(filepath.Join(dir, "sub"), unix.O_PATH, 0)
	must(t, err)
	var end atomic.Bool
	var done sync.WaitGroup
	for _, s := range []struct {
		fd   int
		a, b string
	}{{root, "sub", "l1"}, {root, "file", "l2"}, {sub, "deep", "l3"}, {root, "sub", "l3"}} {
		done.Go(func() {
			for !end.Load() {
				_ = unix.Renameat2(s.fd, s.a, root, s.b, unix.RENAME_EXCHANGE)
			}
		})
	}
	return func() {
		end.Store(true)
		done.Wait()
		must(t, unix.Close(root))
		must(t, unix.Close(sub))
	}
}

// TestHostileRenamer gives a local volume to fsGroup and opens subPaths while another pod renames in the volume all the
// time.
func TestHostileRenamer(t *testing.T) {
	needRoot(t)
	out, unchanged := victim(t)
	dir := t.TempDir()
	m := manager(t, &objects{})
	local := &localClaim{objects: &objects{}, path: dir}
	m.sources = local
	stop := renamer(t, dir, out)
	defer stop()
	pod := withGroup(volumes(vol("v", corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	})), 1001)
	mounted := 0
	refused := 0
	begin := time.Now()
	for time.Since(begin) < 2*time.Second || (mounted == 0 || refused == 0) && time.Since(begin) < time.Minute {
		pod.UID = "u"
		must(t, m.Forget("u"))
		setUp(t, m, pod)
		for _, sub := range []string{"sub", "sub/deep", "sub/new", "file", "l1", "l3/file"} {
			c := &corev1.Container{
				Name:         "c",
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}},
			}
			got, err := m.Mounts(t.Context(), pod, c, false, nil)
			if err != nil {
				refused++
				continue
			}
			mounted++
			if at := got[0].GetHostPath(); isOneOf(t, at, out) {
				t.Fatalf("subPath %s mounted the tree outside at %s", sub, at)
			}
		}
	}
	t.Logf("%d sub paths mounted, %d refused", mounted, refused)
	if mounted == 0 || refused == 0 {
		t.Error("the race tests nothing")
	}
	unchanged()
	if ents, _ := os.ReadDir(filepath.Join(out, "sub")); len(ents) != 2 {
		t.Errorf("made in the tree outside: %v", ents)
	}
}

// isOneOf reports whether p is a file of the tree in dir.
func isOneOf(t *testing.T, p, dir string) bool {
	t.Helper()
	fi := stat(t, p)
	found := false
	must(t, filepath.WalkDir(dir, func(o string, _ fs.DirEntry, err error) error {
		found = found || err == nil && os.SameFile(fi, stat(t, o))
		return err
	}))
	return found
}

// localClaim has one claim: a local volume.
type localClaim struct {
	*objects
	path string
}

func (l *localClaim) Claim(
	context.Context, string, string,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	pv := &corev1.PersistentVolume{}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: l.path}
	return &corev1.PersistentVolumeClaim{}, pv, nil
}

func TestLocalVolumeFollowsChangePolicy(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	m := manager(t, &objects{})
	m.sources = &localClaim{objects: &objects{}, path: dir}
	must(t, os.WriteFile(filepath.Join(dir, "su"), nil, 0o700))
	must(t, os.Chmod(filepath.Join(dir, "su"), fs.ModeSetuid|0o700))
	pod := withGroup(volumes(vol("v", corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	})), 1001)
	policy := corev1.FSGroupChangeOnRootMismatch
	pod.Spec.SecurityContext.FSGroupChangePolicy = &policy
	setUp(t, m, pod)
	if fi := stat(t, filepath.Join(dir, "su")); fi.Mode() != fs.ModeSetuid|0o760 || !hasGroup(fi, 1001) {
		t.Errorf("root did not match: file is %v", fi.Mode())
	}
	must(t, os.WriteFile(filepath.Join(dir, "later"), nil, 0o600))
	must(t, os.Chown(filepath.Join(dir, "later"), 0, 0))
	must(t, m.Forget("u"))
	setUp(t, m, pod)
	if fi := stat(t, filepath.Join(dir, "later")); !hasGroup(fi, 0) {
		t.Error("OnRootMismatch went through a volume whose root matched")
	}
	always := corev1.FSGroupChangeAlways
	pod.Spec.SecurityContext.FSGroupChangePolicy = &always
	setUp(t, m, pod)
	if fi := stat(t, filepath.Join(dir, "later")); !hasGroup(fi, 0) {
		t.Error("ownership was given twice to one pod")
	}
	must(t, m.Forget("u"))
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	setUp(t, m, pod)
	if fi := stat(t, filepath.Join(dir, "later")); !hasGroup(fi, 0) {
		t.Error("a read-only volume was changed")
	}
	must(t, m.Forget("u"))
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = false
	setUp(t, m, pod)
	if fi := stat(t, filepath.Join(dir, "later")); !hasGroup(fi, 1001) || fi.Mode() != 0o660 {
		t.Errorf("Always: %v", fi.Mode())
	}
}

// TestNewSubPathIsLikeItsVolume: as Kubernetes' own test has it, a subPath that is not there yet is made as
// dgtrwxrwxrwx of fsGroup in memory, and as dgrwxrwxrwx on disk.
func TestNewSubPathIsLikeItsVolume(t *testing.T) {
	needRoot(t)
	m := manager(t, &objects{})
	pod := withGroup(volumes(
		vol("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		vol("mem", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}),
	), 123)
	setUp(t, m, pod)
	for name, want := range map[string]string{"disk": "dgrwxrwxrwx", "mem": "dgtrwxrwxrwx"} {
		c := &corev1.Container{
			Name:         "c",
			VolumeMounts: []corev1.VolumeMount{{Name: name, MountPath: "/m", SubPath: "new/deep"}},
		}
		got, err := m.Mounts(t.Context(), pod, c, false, nil)
		must(t, err)
		for _, at := range []string{got[0].GetHostPath(), filepath.Join(where(t, m, pod, name), "new")} {
			if fi := stat(t, at); fi.Mode().String() != want || !hasGroup(fi, 123) {
				t.Errorf("%s: %s is %v, want %s of group 123", name, at, fi.Mode(), want)
			}
		}
	}
}

// TestTearDownOfATreeTooDeepForNames: a pod cannot make a volume that stays forever.
func TestTearDownOfATreeTooDeepForNames(t *testing.T) {
	needRoot(t)
	m := manager(t, &objects{})
	p := volumes(vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	setUp(t, m, p)
	fd, err := unix.Open(where(t, m, p, "v"), unix.O_PATH, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	for range 1500 {
		must(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_PATH, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	must(t, m.Forget("u"))
	if pods, err := m.Pods(); err != nil || len(pods) != 0 {
		t.Errorf("left: %v, %v", pods, err)
	}
}
