// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityNamesRealTests: each test that SECURITY.md names is there.
func TestSecurityNamesRealTests(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1) {
		named[name[1]] = false
	}
	for path := range goFiles(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for name := range named {
			if strings.Contains(string(src), "\nfunc "+name+"(") {
				named[name] = true
			}
		}
	}
	for name, found := range named {
		if !found {
			t.Errorf("SECURITY.md names %s, which does not exist", name)
		}
	}
}
