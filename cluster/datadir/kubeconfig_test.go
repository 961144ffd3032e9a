// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
)

// denied is what the kernel answers about a file in another user's directory.
func denied(path string) (fs.FileInfo, error) {
	return nil, &fs.PathError{Op: "stat", Path: path, Err: syscall.EACCES}
}

// TestKubeconfigDenied: a cluster of another user is there, and starting one would not help.
func TestKubeconfigDenied(t *testing.T) {
	_, opening := denied("/d/kubeconfig")
	err := kubeconfigError("/d", "", opening, errors.New("error loading config file"))
	want := "/d/kubeconfig cannot be opened: permission denied; run this command as its owner or as root"
	if !errors.Is(err, fs.ErrPermission) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := Unreadable(fs.ErrNotExist); !errors.Is(err, fs.ErrNotExist) || err.Error() != fs.ErrNotExist.Error() {
		t.Errorf("got %v, want it as it is", err)
	}
}

// TestPipeIsNotWaitedFor: a kubeconfig may be a pipe, whose writer is gone when its contents are found to be broken.
func TestPipeIsNotWaitedFor(t *testing.T) {
	pipe := Dir(t.TempDir()).Sub("pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := openError(pipe); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

// TestNoCluster: the hint names the directory that was asked for. For a kubeconfig that was named the error says
// what is wrong with it.
func TestNoCluster(t *testing.T) {
	dir := Dir(t.TempDir())
	broken := dir.Sub("broken.yaml")
	absent := dir.Sub("absent.yaml")
	if err := os.WriteFile(broken, []byte("apiVersion: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := dir.Sub("empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for named, want := range map[string]string{
		"":     "no cluster in " + string(dir) + " (start one with `keelson up --data-dir " + string(dir) + "`)",
		absent: "there is no kubeconfig " + absent + ": file does not exist",
		broken: broken + " cannot be read as a kubeconfig: ",
		empty:  empty + " cannot be read as a kubeconfig: ",
	} {
		_, err := ReadKubeconfig(dir, named)
		if err == nil || !strings.HasPrefix(err.Error(), want) || named != "" && strings.Contains(err.Error(),
			"keelson up") {
			t.Errorf("kubeconfig %q: got %v, want %s", named, err, want)
		}
	}
	if err := os.WriteFile(dir.Kubeconfig(), []byte("clusters: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := dir.Kubeconfig() + " cannot be read as a kubeconfig: "
	if _, err := ReadKubeconfig(dir, ""); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the directory's, broken: got %v, want %s", err, want)
	}
}
