// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"keelson/cluster/datadir"
)

// TestNodeKeepsItsName: neither a renamed machine nor a flag renames the node, whose pods would be removed.
func TestNodeKeepsItsName(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := datadir.Dir(t.TempDir())
	machine := DefaultName()
	for _, c := range []struct{ asked, want string }{
		{"worker-1", "worker-1"},
		{"worker-1", "worker-1"},
		{machine, "worker-1"}, // no --node-name
		{"worker-2", ""},
		{machine, "worker-1"},
	} {
		got, err := KeepName(dir, c.asked, log)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("asked for %s: got %q, %v; want %q", c.asked, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "is named worker-1") {
			t.Errorf("asked for %s: %v", c.asked, err)
		}
	}
	if err := os.WriteFile(dir.Sub(datadir.NodeNameFile), nil, 0o600); err != nil { // by a machine that lost its power
		t.Fatal(err)
	}
	if got, err := KeepName(dir, "worker-3", log); got != "worker-3" || err != nil {
		t.Errorf("with an empty file: %q, %v", got, err)
	}
}
