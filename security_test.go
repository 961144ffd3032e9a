// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testCited = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`")

// TestDocumentsNameRealTests: each test that SECURITY.md and the other documents name is there.
func TestDocumentsNameRealTests(t *testing.T) {
	named := map[string][]string{} // documents by test
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testCited.FindAllStringSubmatch(string(text), -1) {
			named[m[1]] = append(named[m[1]], doc)
		}
	}
	if len(named) == 0 {
		t.Fatal("the documents name no test")
	}
	tests, err := filepath.Glob("*_test.go") // goFiles has those of the rooms
	if err != nil {
		t.Fatal(err)
	}
	for path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			tests = append(tests, path)
		}
	}
	for _, path := range tests {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for name := range named {
			if strings.Contains(string(src), "\nfunc "+name+"(") {
				delete(named, name)
			}
		}
	}
	for name, docs := range named {
		t.Errorf("%s: there is no test %s", strings.Join(docs, ", "), name)
	}
}
