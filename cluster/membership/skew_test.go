// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"strings"
	"testing"
)

// TestSkew: a node may be as new as its API server, and three minor versions older.
func TestSkew(t *testing.T) {
	for _, c := range []struct{ node, server, want string }{
		{"v1.37.2+keelson", "v1.37.2+keelson", ""},
		{"v1.37.9+keelson", "v1.37.2", ""},
		{"v1.38.0+keelson", "v1.37.2+keelson", "is newer than its API server with v1.37.2+keelson: upgrade the servers"},
		{"v1.34.0+keelson", "v1.37.2+keelson", ""},
		{"v1.33.9+keelson", "v1.37.2+keelson", "is more than 3 minor versions older"},
		{"unknown", "v1.37.2", ""},
		{"v1.37.2", "", ""},
	} {
		got := skew(c.node, c.server)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("a node of %s at a server of %s: %q, want %q", c.node, c.server, got, c.want)
		}
	}
}
