// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	required = regexp.MustCompile(`^(?:require\s+)?([a-z0-9.-]+\.[a-z]+/\S+) v\S+$`)
	listed   = regexp.MustCompile(`^\| ([a-z0-9.-]+\.[a-z]+/\S+) \| (.*\S) \|$`)
)

// TestModules holds docs/modules.md against go.mod: each module that is required directly has its sentence, and no
// other has.
func TestModules(t *testing.T) {
	lines := func(path string, re *regexp.Regexp) map[string]string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for line := range strings.Lines(string(b)) {
			if m := re.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				found[m[1]] = m[len(m)-1]
			}
		}
		return found
	}
	reasons := lines("docs/modules.md", listed)
	modules := lines("go.mod", required)
	if len(modules) < 10 {
		t.Fatalf("only %d direct requirements found in go.mod: its form has changed", len(modules))
	}
	for m := range modules {
		if len(strings.Fields(reasons[m])) < 2 {
			t.Errorf("go.mod requires %s: docs/modules.md must say why, in a sentence", m)
		}
	}
	for m := range reasons {
		if _, ok := modules[m]; !ok {
			t.Errorf("docs/modules.md lists %s, which go.mod does not require directly", m)
		}
	}
}
