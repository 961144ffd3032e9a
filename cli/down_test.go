// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/cluster/datadir"
)

// TestPurgeAsks: a purge that would delete data of local volumes needs a yes; empty volumes are no data.
func TestPurgeAsks(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	ask := func(terminal bool, answer string) (string, error) {
		var out strings.Builder
		err := agreePurge(dir, Stdio{In: strings.NewReader(answer), Out: &out}, terminal)
		return out.String(), err
	}
	agreed := func(what string) {
		t.Helper()
		if out, err := ask(false, ""); err != nil || out != "" {
			t.Errorf("%s: %q, %v; want no question", what, out, err)
		}
	}
	agreed("no volumes")
	volume := dir.Sub("volumes/pvc-1")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	agreed("an empty volume")
	if err := os.WriteFile(filepath.Join(volume, "data"), make([]byte, 3000), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := ask(false, "y\n"); err == nil || out != "" || !strings.Contains(err.Error(), "--yes") ||
		!strings.Contains(err.Error(), volume) {
		t.Errorf("not on a terminal: %q, %v", out, err)
	}
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "": false} {
		out, err := ask(true, answer)
		if (err == nil) != want || !strings.Contains(out, volume+"   3 KiB") || !strings.Contains(out, "[y/N]") {
			t.Errorf("answer %q: %q, %v", answer, out, err)
		}
	}
}
