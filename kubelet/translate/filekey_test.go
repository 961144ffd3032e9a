// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestFileKeyOfNoFile: what an init container left in place of an env file neither blocks the kubelet nor leads out of
// the volume.
func TestFileKeyOfNoFile(t *testing.T) {
	dir := t.TempDir()
	vol := filepath.Join(dir, "vol")
	if err := os.Mkdir(vol, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"secret":   "K='secret'\n",
		"vol/file": "K='v'\nbroken\n",
		"vol/big":  string(make([]byte, maxEnvFile+1)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(vol, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"up": "../secret", "abs": filepath.Join(dir, "secret")} {
		if err := os.Symlink(to, filepath.Join(vol, link)); err != nil {
			t.Fatal(err)
		}
	}
	files := envFiles{dir: func(string) string { return vol }, room: NewRoom(&corev1.Pod{})}
	for path, want := range map[string]string{
		"file": "v",
		"fifo": "!",
		"up":   "!",
		"abs":  "!",
		"big":  "!",
		"none": "!",
		".":    "!",
	} {
		v, ok, err := files.key(&corev1.FileKeySelector{VolumeName: "v", Path: path, Key: "K"})
		if want == "!" && err == nil || want != "!" && (v != want || !ok || err != nil) {
			t.Errorf("%s: %q, %t, %v; want %q", path, v, ok, err, want)
		}
	}
	if v, ok, err := files.key(&corev1.FileKeySelector{VolumeName: "v", Path: "file", Key: "L"}); err == nil {
		t.Errorf("a key after what is broken: %q, %t", v, ok)
	}
	yes := true
	if _, ok, err := files.key(&corev1.FileKeySelector{
		VolumeName: "v",
		Path:       "none",
		Key:        "K",
		Optional:   &yes,
	}); ok || err != nil {
		t.Errorf("optional and missing: %t, %v", ok, err)
	}
}
