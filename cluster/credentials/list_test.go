// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"path/filepath"
	"strings"
	"testing"

	"keelson/cluster/datadir"
)

// TestNoDirectory: where no cluster has been started, each command on certificates names the one that starts it.
func TestNoDirectory(t *testing.T) {
	dir := datadir.Dir(filepath.Join(t.TempDir(), "none"))
	_, listed := List(t.Context(), dir)
	_, renewed := Renew(dir, nil)
	_, rotated := Rotation{Dir: dir, Name: "ca", Step: "trust"}.Run(t.Context())
	for what, err := range map[string]error{"list": listed, "renew": renewed, "rotate": rotated} {
		if err == nil || !strings.Contains(err.Error(), "keelson up --data-dir") {
			t.Errorf("%s: %v, want what to do", what, err)
		}
	}
}
