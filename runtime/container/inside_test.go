// SPDX-License-Identifier: Apache-2.0

package container

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadInside: an image's /etc/passwd is read within the image, and only when it is a file.
func TestReadInside(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	passwd := filepath.Join(root, "etc/passwd")
	if b, err := readInside(root, "etc/passwd"); b != nil || err != nil {
		t.Errorf("not there: %q, %v", b, err)
	}
	for _, target := range []string{filepath.Join(dir, "secret"), "../../secret", "/etc/none"} {
		if err := os.Symlink(target, passwd); err != nil {
			t.Fatal(err)
		}
		if b, err := readInside(root, "etc/passwd"); b != nil || err != nil {
			t.Errorf("link to %s: %q, %v", target, b, err)
		}
		if err := os.Remove(passwd); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(passwd, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := readInside(root, "etc/passwd"); err == nil {
		t.Errorf("a FIFO: %q", b)
	}
	if os.Getuid() != 0 {
		return
	}
	if err := os.Remove(passwd); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(passwd, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil { // /dev/zero
		t.Fatal(err)
	}
	if b, err := readInside(root, "etc/passwd"); err == nil {
		t.Errorf("a device: %d bytes", len(b))
	}
}
