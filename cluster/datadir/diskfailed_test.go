// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenedBy: the process that has the pid file open is found when the file cannot be read.
func TestOpenedBy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keelson.pid")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := openedBy(path); got != 0 {
		t.Errorf("only this process has it open: got %d", got)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	if got := openedBy(path); got != cmd.Process.Pid {
		t.Errorf("got %d, want %d", got, cmd.Process.Pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if got := openedBy(path); got != 0 {
		t.Errorf("after its end: got %d", got)
	}
	for _, err := range []error{unix.EIO, &os.PathError{Op: "open", Path: path, Err: unix.EROFS}} {
		if !DiskFailed(err) {
			t.Errorf("%v is not of a failed disk", err)
		}
	}
	for _, err := range []error{nil, os.ErrNotExist, unix.EACCES, unix.EWOULDBLOCK} {
		if DiskFailed(err) {
			t.Errorf("%v is of a failed disk", err)
		}
	}
}
