// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"strings"
	"testing"
)

// TestEntriesAreDocumented: docs/directories.md names each entry that the program creates.
func TestEntriesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/directories.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range contents {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/directories.md does not name the entry %s", name)
		}
	}
}
