// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestImageSpec: each row of docs/images-spec.md names tests that are there, or says why it has none, and the page
// counts its rows.
func TestImageSpec(t *testing.T) {
	text, err := os.ReadFile("docs/images-spec.md")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, row := range tableRows(string(text)) {
		if slices.Equal(row, []string{"clause", "", "what we do", "test"}) {
			continue
		}
		if len(row) != 4 || row[0] == "" || row[2] == "" {
			t.Errorf("%q: not a clause, a level, what we do and tests", row)
			continue
		}
		state, _, _ := strings.Cut(row[2], ": ")
		if state != "n/a" && state != "otherwise" {
			state = "so"
		}
		counts[state]++
		if row[3] == "" && state == "so" {
			t.Errorf("%s: neither a test nor a reason", row[0])
		}
		for name := range strings.SplitSeq(row[3], ", ") {
			if name != "" && !testExists(name) {
				t.Errorf("%s: there is no test %s", row[0], name)
			}
		}
	}
	want := fmt.Sprintf("%d clauses %d hold, %d are done otherwise, %d are n/a", counts["so"]+counts["otherwise"]+
		counts["n/a"], counts["so"], counts["otherwise"], counts["n/a"])
	if prose := strings.Join(strings.Fields(string(text)), " "); counts["so"] == 0 || !strings.Contains(prose, want) {
		t.Errorf("the page does not say %q", want)
	}
}
