// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// changesHead is the head of the tables in docs/changes-*.md. The states are "holds" and "fixed", with tests; "read",
// which holds by the code alone; "n/a: REASON", and "open: REASON".
var changesHead = []string{"release", "change", "pull request", "state", "test"}

var (
	release     = regexp.MustCompile(`^v1\.[0-9]{2}$`)
	pullRequest = regexp.MustCompile(`^#[0-9]+$`)
)

// TestChanges: each row of the tables of Kubernetes' changes is complete, its tests exist, and the page counts the
// states of its rows.
func TestChanges(t *testing.T) {
	pages, err := filepath.Glob("docs/changes-*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no docs/changes-*.md: %v", err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		seen := map[string]bool{}
		for _, row := range tableRows(string(text)) {
			if slices.Equal(row, changesHead) {
				continue
			}
			if len(row) != len(changesHead) {
				t.Errorf("%s: %v has %d cells, want %d", page, row, len(row), len(changesHead))
				continue
			}
			if seen[row[2]] {
				t.Errorf("%s: %s has two rows", page, row[2])
			}
			seen[row[2]] = true
			if problem := wrongChange(row); problem != "" {
				t.Errorf("%s: %s: %s", page, row[2], problem)
			}
			state, _, _ := strings.Cut(row[3], ":")
			counts[state]++
		}
		want := fmt.Sprintf("%d fixed, %d hold, %d read, %d n/a, %d open", counts["fixed"], counts["holds"],
			counts["read"], counts["n/a"], counts["open"])
		if len(seen) == 0 || !strings.Contains(string(text), want) {
			t.Errorf("%s has %d rows and does not say %q", page, len(seen), want)
		}
	}
}

// tableRows returns the cells of a page's tables, without the lines below their heads.
func tableRows(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// wrongChange returns what is wrong with a row; empty: nothing.
func wrongChange(row []string) string {
	if !release.MatchString(row[0]) || row[1] == "" || !pullRequest.MatchString(row[2]) {
		return "a row begins with a release, a change and a pull request"
	}
	state, reason, reasoned := strings.Cut(row[3], ": ")
	switch state {
	case "holds", "fixed":
		if row[4] == "" || reasoned {
			return "a row that holds names a test"
		}
		for name := range strings.SplitSeq(row[4], ", ") {
			if !testExists(name) {
				return "there is no test " + name
			}
		}
	case "n/a", "open":
		if reason == "" || row[4] != "" {
			return "a row without a test has a reason"
		}
	case "read":
		if reasoned || row[4] != "" {
			return "a row that was read has neither a reason nor a test"
		}
	default:
		return "there is no state " + state
	}
	return ""
}

// testExists reports whether a test is there: "api/meta.TestChildName", or a script below test/scripts.
func testExists(name string) bool {
	if strings.HasSuffix(name, ".txtar") {
		return exists(name)
	}
	dir, test, ok := strings.Cut(name, ".")
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return ok && err == nil && slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+test+"(t *testing.T) {")
	})
}
