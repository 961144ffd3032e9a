// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// objects is a Sources in memory.
type objects struct {
	maps    map[string]map[string]string
	secrets map[string]map[string]string
	tokens  int
	life    time.Duration

	bundles  map[string]string
	requests []*certificatesv1.PodCertificateRequest
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	d, ok := o.maps[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: d}, nil
}

func (o *objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	d, ok := o.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	s := &corev1.Secret{Data: map[string][]byte{}}
	for k, v := range d {
		s.Data[k] = []byte(v)
	}
	return s, nil
}

func (o *objects) Token(_ context.Context, _, _ string, r *authv1.TokenRequest) (*authv1.TokenRequest, error) {
	o.tokens++
	r.Status.Token = fmt.Sprintf("token-%d", o.tokens)
	r.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(o.life))
	return r, nil
}

func (o *objects) Claim(
	_ context.Context, _, name string,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	return nil, nil, fmt.Errorf("PVC %s is not bound", name)
}

func manager(t *testing.T, o *objects) *Manager {
	t.Helper()
	m := New(Config{
		Dir:     filepath.Join(t.TempDir(), "kubelet"),
		Memory:  8 << 30,
		Sources: o,
		Log:     slog.New(slog.DiscardHandler),
	})
	if err := m.Prepare(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Purge(m.dir); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return m
}

func volumes(vs ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "p",
			Namespace: "ns",
			UID:       "u",
			Labels:    map[string]string{"a": "1", "b": `two "quoted"`},
		},
		Spec: corev1.PodSpec{Volumes: vs, Containers: []corev1.Container{{Name: "c"}}},
	}
}

func vol(name string, s corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: s}
}

func where(t *testing.T, m *Manager, p *corev1.Pod, name string) string {
	t.Helper()
	d, err := m.Path(t.Context(), p, name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func content(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func setUp(t *testing.T, m *Manager, p *corev1.Pod) time.Time {
	t.Helper()
	at, err := m.SetUp(t.Context(), Input{Pod: p})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestConfigMapIsSwitchedAtOnce(t *testing.T) {
	o := &objects{maps: map[string]map[string]string{"cm": {"k1": "v1", "k2": "v2"}}}
	m := manager(t, o)
	pod := volumes(vol("v", corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
	}))
	setUp(t, m, pod)
	dir := where(t, m, pod, "v")
	first, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil || content(t, filepath.Join(dir, "k1")) != "v1" {
		t.Fatalf("..data -> %q, %v; k1 %q", first, err, content(t, filepath.Join(dir, "k1")))
	}
	setUp(t, m, pod)
	if again, _ := os.Readlink(filepath.Join(dir, "..data")); again != first {
		t.Errorf("nothing changed, but ..data went from %s to %s", first, again)
	}
	o.maps["cm"] = map[string]string{"k1": "new", "k3": "v3"}
	setUp(t, m, pod)
	if got := content(t, filepath.Join(dir, "k1")); got != "new" {
		t.Errorf("k1: got %q, want new", got)
	}
	ents, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range ents {
		if !strings.HasPrefix(e.Name(), "..2") {
			names = append(names, e.Name())
		}
	}
	if want := []string{"..data", "k1", "k3"}; !slices.Equal(names, want) || len(ents) != 4 {
		t.Errorf("volume holds %v of %d, want %v and one content", names, len(ents), want)
	}
}

func TestMissingAndOptional(t *testing.T) {
	m := manager(t, &objects{maps: map[string]map[string]string{"cm": {"k": "v"}}})
	yes := true
	src := func(name, key string, opt *bool) corev1.VolumeSource {
		s := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: opt}
		if key != "" {
			s.Items = []corev1.KeyToPath{{Key: key, Path: "sub/" + key}}
		}
		return corev1.VolumeSource{ConfigMap: s}
	}
	for name, tt := range map[string]struct {
		src  corev1.VolumeSource
		want string
	}{
		"no object": {
			src("none", "", nil), `MountVolume.SetUp failed for volume "v" : configmap "none" not found`,
		},
		"no key": {
			src("cm", "x", nil), `MountVolume.SetUp failed for volume "v" : references non-existent config key: x`,
		},
		"no object optional": {src("none", "", &yes), ""},
		"no key optional":    {src("cm", "x", &yes), ""},
		"key":                {src("cm", "k", nil), ""},
	} {
		_, err := m.SetUp(t.Context(), Input{Pod: volumes(vol("v", tt.src))})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestProjected(t *testing.T) {
	o := &objects{maps: map[string]map[string]string{"cm": {"ca.crt": "CA"}}, life: time.Hour}
	m := manager(t, o)
	mode := int32(0o400)
	pod := volumes(
		vol("v", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}, Mode: &mode},
			}}},
		}}}))
	at := setUp(t, m, pod)
	if left := time.Until(at); left < 47*time.Minute || left > 48*time.Minute {
		t.Errorf("renewal in %s, want 80 %% of an hour", left)
	}
	dir := where(t, m, pod, "v")
	for file, want := range map[string]string{
		"token":     "token-1",
		"ca.crt":    "CA",
		"namespace": "ns",
		"labels":    "a=\"1\"\nb=\"two \\\"quoted\\\"\"",
	} {
		if got := content(t, filepath.Join(dir, file)); got != want {
			t.Errorf("%s: got %q, want %q", file, got, want)
		}
	}
	st, err := os.Stat(filepath.Join(dir, "labels"))
	if err != nil || st.Mode().Perm() != 0o400 {
		t.Errorf("mode of labels: got %v, %v; want 0400", st.Mode(), err)
	}
	pod.Spec.Volumes[0].Projected.Sources[2].DownwardAPI.Items[0].Path = "../out"
	if _, err := m.SetUp(t.Context(), Input{Pod: pod}); err == nil {
		t.Error("a path that leads out of the volume was accepted")
	}
}

func TestEmptyDirAndOwnership(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts and group ownership")
	}
	m := manager(t, &objects{secrets: map[string]map[string]string{"s": {"key": "secret"}}})
	size := resource.MustParse("1Mi")
	mode := int32(0o440)
	gid := int64(1001)
	pod := volumes(
		vol("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		vol("mem", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium:    corev1.StorageMediumMemory,
			SizeLimit: &size,
		}}),
		vol("sec", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode}}),
	)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
	setUp(t, m, pod)
	setUp(t, m, pod) // again changes nothing
	var s unix.Statfs_t
	if err := unix.Statfs(where(t, m, pod, "mem"), &s); err != nil || s.Type != unix.TMPFS_MAGIC ||
		s.Blocks*uint64(s.Bsize) != 1<<20 {
		t.Errorf("memory volume: type %x, %d bytes, %v; want a tmpfs of 1 MiB", s.Type, s.Blocks*uint64(s.Bsize), err)
	}
	if err := unix.Statfs(where(t, m, pod, "sec"), &s); err != nil || s.Type != unix.TMPFS_MAGIC {
		t.Errorf("secret volume: type %x, %v; want a tmpfs", s.Type, err)
	}
	for _, name := range []string{"disk", "mem"} {
		st, err := os.Stat(where(t, m, pod, name))
		if err != nil || st.Mode().Perm() != 0o777 || st.Mode()&fs.ModeSetgid == 0 || !hasGroup(st, 1001) {
			t.Errorf("%s: mode %v, %v; want 2777 of group 1001", name, st.Mode(), err)
		}
	}
	st, err := os.Stat(filepath.Join(where(t, m, pod, "sec"), "key"))
	if err != nil || st.Mode().Perm() != 0o440 || !hasGroup(st, 1001) {
		t.Errorf("secret file: mode %v, %v; want 0440 of group 1001", st.Mode(), err)
	}
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	mounts, err := mountPoints()
	if err != nil {
		t.Fatal(err)
	}
	for _, mp := range mounts {
		if strings.HasPrefix(mp, m.PodDir("u")) {
			t.Errorf("still mounted: %s", mp)
		}
	}
	if err := m.Forget("u"); err != nil {
		t.Fatal(err)
	}
	if pods, err := m.Pods(); err != nil || len(pods) != 0 {
		t.Errorf("pods left on disk: %v, %v", pods, err)
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		typ  corev1.HostPathType
		want string
	}{
		{dir, corev1.HostPathDirectory, ""},
		{file, corev1.HostPathDirectory, "is not a directory"},
		{file, corev1.HostPathFile, ""},
		{dir, corev1.HostPathFile, "is not a file"},
		{filepath.Join(dir, "new/deep"), corev1.HostPathDirectoryOrCreate, ""},
		{filepath.Join(dir, "newfile"), corev1.HostPathFileOrCreate, ""},
		{filepath.Join(dir, "none"), corev1.HostPathSocket, "is not a socket file"},
		{"/dev/null", corev1.HostPathCharDev, ""},
		{"/dev/null", corev1.HostPathBlockDev, "is not a block device"},
	} {
		err := checkHostPath(&corev1.HostPathVolumeSource{Path: tt.path, Type: &tt.typ}, tt.path)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s as %s: got %v, want %q", tt.path, tt.typ, err, tt.want)
		}
	}
}

func TestSubPathStaysInside(t *testing.T) {
	m := manager(t, &objects{})
	m.tmpfs = false // resolve only
	pod := volumes(vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	setUp(t, m, pod)
	dir := where(t, m, pod, "v")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o750); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"out": "/etc", "up": "../..", "in": "sub"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for sub, want := range map[string]string{
		"sub":        "sub",
		"in":         "sub",
		"new/deep":   "new/deep",
		"out":        "!",
		"out/passwd": "!",
		"up":         "!",
		"up/x":       "!",
		"../x":       "!",
		"/etc":       "!",
		"a/../../x":  "!",
	} {
		c := &corev1.Container{
			Name:         "c",
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}},
		}
		got, err := m.Mounts(t.Context(), pod, c, false, nil)
		if want == "!" {
			if err == nil {
				t.Errorf("%s: led to %s, want an error", sub, got[0].GetHostPath())
			}
			continue
		}
		resolved, _ := filepath.EvalSymlinks(filepath.Join(dir, want))
		if err != nil || got[0].GetHostPath() != resolved {
			t.Errorf("%s: got %v, %v; want %s", sub, got, err, resolved)
		}
	}
}

func TestSubPathIsABindMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: bind mounts")
	}
	m := manager(t, &objects{maps: map[string]map[string]string{"cm": {"k": "v"}}})
	pod := volumes(vol("v", corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
	}))
	setUp(t, m, pod)
	container := &corev1.Container{
		Name:         "c",
		VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/etc/k", SubPathExpr: "$(K)"}},
	}
	expand := func(s string) (string, error) {
		if s != "$(K)" {
			return "", errors.New("unexpected " + s)
		}
		return "k", nil
	}
	for range 2 { // a second run of the container finds the mount of the first
		got, err := m.Mounts(t.Context(), pod, container, false, expand)
		if err != nil {
			t.Fatal(err)
		}
		if s := content(t, got[0].GetHostPath()); s != "v" || !got[0].GetReadonly() {
			t.Errorf("mounted file: got %q, readonly %t; want v, true", s, got[0].GetReadonly())
		}
	}
	if err := m.Forget("u"); err != nil {
		t.Fatal(err)
	}
}

func TestParseMountInfo(t *testing.T) {
	got := parseMountInfo("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:5 / /a\\040b\\134c rw - tmpfs tmpfs " +
		"rw\nshort line\n")
	if want := []string{"/", `/a b\c`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzParseMountInfo(f *testing.F) {
	f.Add("22 1 8:1 / /a\\040b rw\n")
	f.Add("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n")
	f.Add("1 1 0:1\n2 1 0:2 / /x\\04\n\n")
	f.Fuzz(func(_ *testing.T, s string) { parseMountInfo(s) })
}

func FuzzSubPath(f *testing.F) {
	f.Add("a/b")
	f.Add("..")
	f.Add("/x/../..")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := subPath(&corev1.VolumeMount{SubPath: s}, nil)
		if err == nil && got != "" && !filepath.IsLocal(got) {
			t.Errorf("subPath(%q) = %q leads out", s, got)
		}
	})
}

func FuzzTokenLife(f *testing.F) {
	f.Add("a.eyJpYXQiOjEsImV4cCI6Mn0.c")
	f.Add("a.eyJpYXQiOiJ4In0.c")
	f.Add("a..c")
	f.Fuzz(func(_ *testing.T, s string) { tokenLife(s) })
}

// TestRecursiveReadOnly: IfPossible is what the runtime can do, and Enabled is an error where it cannot.
func TestRecursiveReadOnly(t *testing.T) {
	m := manager(t, &objects{})
	pod := volumes(vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	container := &pod.Spec.Containers[0]
	for _, tt := range []struct {
		mode     corev1.RecursiveReadOnlyMode
		readOnly bool
		can      bool
		want     bool
		fails    bool
	}{
		{mode: corev1.RecursiveReadOnlyIfPossible, readOnly: true, can: true, want: true},
		{mode: corev1.RecursiveReadOnlyIfPossible, readOnly: true},
		{mode: corev1.RecursiveReadOnlyEnabled, readOnly: true, can: true, want: true},
		{mode: corev1.RecursiveReadOnlyEnabled, readOnly: true, fails: true},
		{mode: corev1.RecursiveReadOnlyDisabled, readOnly: true, can: true},
	} {
		container.VolumeMounts = []corev1.VolumeMount{{
			Name:              "v",
			MountPath:         "/v",
			ReadOnly:          tt.readOnly,
			RecursiveReadOnly: &tt.mode,
		}}
		got, err := m.Mounts(t.Context(), pod, container, tt.can, nil)
		if tt.fails {
			if want := `volume "v" requested recursive read-only mode, but it is not supported by the runtime`; err == nil ||
				err.Error() != want {
				t.Errorf("%+v: got %v, want %q", tt, err, want)
			}
			continue
		}
		if err != nil || got[0].GetRecursiveReadOnly() != tt.want {
			t.Errorf("%+v: got %v, %v", tt, got, err)
		}
	}
}

// TestMountsBelowVolumes: a directory for another volume is made in a volume of files, and updates of the files keep
// it.
func TestMountsBelowVolumes(t *testing.T) {
	o := &objects{maps: map[string]map[string]string{"cm": {"k1": "v1"}}}
	m := manager(t, o)
	pod := volumes(
		vol("v", corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
		}),
		vol("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
	)
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{
		{Name: "v", MountPath: "/cfg/"},
		{Name: "e", MountPath: "/cfg/logs/today"},
		{Name: "e", MountPath: "/cfg/k1"},
		{Name: "e", MountPath: "/cfg/..data"},
		{Name: "e", MountPath: "/cfgs/other"},
	}}}
	setUp(t, m, pod)
	dir := where(t, m, pod, "v")
	check := func(when string) {
		t.Helper()
		if i, err := os.Lstat(filepath.Join(dir, "logs", "today")); err != nil || !i.IsDir() {
			t.Errorf("%s: %v, %v, want a directory", when, i, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "..") {
				names = append(names, e.Name())
			}
		}
		if want := []string{"k1", "logs"}; !slices.Equal(names, want) {
			t.Errorf("%s: got %q, want %q", when, names, want)
		}
		if got := content(t, filepath.Join(dir, "k1")); got != o.maps["cm"]["k1"] {
			t.Errorf("%s: k1 is %q", when, got)
		}
	}
	check("set up")
	o.maps["cm"] = map[string]string{"k1": "new"}
	setUp(t, m, pod)
	check("updated")
}
