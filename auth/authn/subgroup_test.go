// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"strings"
	"testing"
)

func TestSubgroups(t *testing.T) {
	const prefix = "system:bootstrappers:"
	for group, want := range map[string]bool{
		prefix + "a":                      true,
		prefix + "a:b-c":                  true,
		prefix + strings.Repeat("a", 256): true,
		prefix + strings.Repeat("a", 257): false,
		prefix:                            false,
		prefix + "a-":                     false,
		"system:masters":                  false,
	} {
		if got := isSubgroup(group); got != want {
			t.Errorf("%.40s, %d bytes: got %v", group, len(group), got)
		}
	}
}
