// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestWarningsTable: each row of docs/warnings.md names a test that is there, and the file of that test has the row's
// text. A row without a test has a reason.
func TestWarningsTable(t *testing.T) {
	raw, err := os.ReadFile("docs/warnings.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testSources(t)
	rows := 0
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 4 || strings.HasPrefix(line, "| kind") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		text := strings.TrimSpace(cells[2])
		name := strings.Trim(cells[3], "`| ")
		if name == "" {
			if !strings.HasPrefix(text, "n/a: ") {
				t.Errorf("%s: neither a test nor a reason", line)
			}
			continue
		}
		source, found := tests[name]
		if !found {
			t.Errorf("%s: no test %s", line, name)
		}
		if !strings.HasPrefix(text, "`") {
			continue
		}
		for part := range strings.SplitSeq(strings.Trim(text, "`"), "…") {
			if part = strings.TrimSpace(part); !strings.Contains(source, part) {
				t.Errorf("%s: the file of %s has no %q", line, name, part)
			}
		}
	}
	if rows < 70 {
		t.Errorf("%d rows, want all kinds", rows)
	}
}

var (
	testName  = regexp.MustCompile(`\nfunc (Test[A-Za-z0-9]+)\(`)
	stringEnd = regexp.MustCompile("[\"`] ?\\+\\s*[\"`]")
)

// testSources are the files of all tests by the tests' names, with strings that are written in parts joined.
func testSources(t *testing.T) map[string]string {
	t.Helper()
	sources := map[string]string{}
	for path := range goFiles(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		joined := strings.ReplaceAll(stringEnd.ReplaceAllString(string(raw), ""), `\"`, `"`)
		for _, name := range testName.FindAllStringSubmatch(string(raw), -1) {
			sources[name[1]] += joined
		}
	}
	return sources
}
