// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestCheck: a mistake has its line, in a configuration as in a file that is no YAML at all; policies are
// counted.
func TestCheck(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	path := filepath.Join(t.TempDir(), "f.yaml")
	for text, want := range map[string]string{
		head:                      "a KubeSchedulerConfiguration <nil>",
		head + "profiles: [}\n":   " " + path + ":3: did not find expected node content",
		head + "parallelism: x\n": " " + path + ":3: parallelism: must be int32, not string",
		"kind: SchedulingPolicy\nmetadata: {name: a}\nspec: {scores: [{expression: '1'}]}\n": "1 SchedulingPolicies " +
			"<nil>",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		what, err := Check(path)
		if got := fmt.Sprint(what, " ", err); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
