// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	for id, good := range map[string]bool{
		"a":                      true,
		"0a_b.c-d":               true,
		strings.Repeat("a", 200): true,
		strings.Repeat("a", 201): false,
		"":                       false,
		".":                      false,
		"../a":                   false,
		"a/b":                    false,
		"a\n":                    false,
	} {
		if err := checkID(id); (err == nil) != good {
			t.Errorf("%.20q, %d bytes: got %v", id, len(id), err)
		}
	}
}
