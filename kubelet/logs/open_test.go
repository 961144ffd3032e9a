// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLogThatIsNoFile: a pod that can write to the directory of logs reads nothing of the host through them.
func TestLogThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("2026-01-01T00:00:00Z stdout F secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "0.log")
	fifo := filepath.Join(dir, "1.log")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{link, fifo} {
		var out bytes.Buffer
		if err := Read(t.Context(), p, Options{Stdout: true, Stderr: true}, &out); err == nil || out.Len() > 0 {
			t.Errorf("%s: read %q, %v; want an error", p, out.String(), err)
		}
	}
	var out bytes.Buffer
	if err := Read(t.Context(), secret, Options{Stdout: true}, &out); err != nil || out.String() != "secret\n" {
		t.Errorf("a plain file: %q, %v", out.String(), err)
	}
}
