// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"testing"
)

// TestTunnelModes: what is not there is refused in words, not taken for something else.
func TestTunnelModes(t *testing.T) {
	var m tunnelMode
	for text, want := range map[string]string{
		"auto":      "",
		"vxlan":     "",
		"none":      "",
		"wireguard": "",
		"gre":       `"gre" is none of [auto vxlan wireguard none]`,
	} {
		got := ""
		if err := m.Set(text); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("--tunnel=%s: %q, want %q", text, got, want)
		}
	}
}
