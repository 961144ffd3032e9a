// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadAuthoritiesNamesTheFlag: who gave a wrong file learns by which flag.
func TestReadAuthoritiesNamesTheFlag(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("no PEM\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/nope": "--client-ca-file: open /nope: no such file or directory",
		empty:   "--client-ca-file: " + empty + ": it holds no certificate",
	} {
		if _, err := ReadAuthorities(path, "--client-ca-file"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}
