// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRegistries: --image-mirror goes before the file, in its order; another form is refused with the text itself, and
// a file that is missing with its name.
func TestRegistries(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(file, []byte("mirrors: {docker.io: {endpoint: [https://last.test]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Registries(file, []string{"docker.io=https://a.test", "quay.io=http://10.0.0.1:5000", "docker.io=http://b.test"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"https://a.test", "http://b.test", "https://last.test"}
	if have := got.Mirrors["docker.io"].Endpoints; !slices.Equal(have, want) {
		t.Errorf("docker.io: %q, want %q", have, want)
	}
	if have := got.Mirrors["quay.io"].Endpoints; !slices.Equal(have, []string{"http://10.0.0.1:5000"}) {
		t.Errorf("quay.io: %q", have)
	}
	if _, err := Registries("", []string{"docker.io"}); err == nil ||
		!strings.Contains(err.Error(), `"docker.io" is not of the form HOST=URL`) {
		t.Errorf("without a URL: %v", err)
	}
	if _, err := Registries(file+".none", nil); err == nil || !strings.Contains(err.Error(), "registries.yaml.none") {
		t.Errorf("without the file: %v", err)
	}
}
