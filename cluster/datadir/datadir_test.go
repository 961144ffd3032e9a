// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDataDirThatIsAFile: the message names the file, also where it is above the directory.
func TestDataDirThatIsAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := file + " is a file and not a directory"
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if _, err := Dir(dir).Prepare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("prepare %s: got %v, want %q", dir, err, want)
		}
		if _, err := Dir(dir).Running(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("process of %s: got %v, want %q", dir, err, want)
		}
		if err := Dir(dir).IsDirectory(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s as a directory: got %v, want %q", dir, err, want)
		}
		if err := Dir(dir).Started(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("started %s: got %v, want %q", dir, err, want)
		}
		if _, err := ReadKubeconfig(Dir(dir), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("kubeconfig of %s: got %v, want %q", dir, err, want)
		}
	}
}
