// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// TestStartLoadsNoTranslations: package translations is initialized before the first package of kubectl that
// translates. Otherwise that package would load the message catalog, with 4 MB of allocations in each start.
func TestStartLoadsNoTranslations(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1", "LC_ALL=C")
	trace, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, trace)
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^init (\S*kubectl/\S+) .* (\d+) bytes,`).FindAllStringSubmatch(
		string(trace), -1) {
		found++
		if n, err := strconv.Atoi(m[2]); err != nil || n > 1<<20 {
			t.Errorf("initialization of %s allocates %s bytes", m[1], m[2])
		}
	}
	if found == 0 {
		t.Errorf("no package of kubectl in the trace:\n%s", trace)
	}
}
