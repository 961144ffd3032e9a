// SPDX-License-Identifier: Apache-2.0

package nodehost

import "testing"

func TestMissingCapabilities(t *testing.T) {
	for _, c := range []struct {
		status string
		want   int
	}{
		{"Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n", 0},
		{"Name:\tx\nCapEff:\t00000000a80425fb\n", 2}, // what a plain container has
		{"Name:\tx\nCapEff:\t0000000000200000\n", 1},
		{"Name:\tx\n", 0},
	} {
		if got := missingCapabilities(c.status); len(got) != c.want {
			t.Errorf("%q: %q missing, want %d", c.status, got, c.want)
		}
	}
}
