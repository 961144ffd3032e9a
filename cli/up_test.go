// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestFakeNodesAreOfOneStart: the help and the page of fake nodes warn that a start without --fake-nodes removes fake
// nodes and their pods.
func TestFakeNodesAreOfOneStart(t *testing.T) {
	var help, errs bytes.Buffer
	if code := Run(t.Context(), []string{"keelson", "up", "--help"},
		Stdio{In: strings.NewReader(""), Out: &help, Err: &errs}); code != 0 {
		t.Fatalf("up --help: exit code %d, %s", code, errs.String())
	}
	page, err := os.ReadFile("../docs/fake-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	const warning = "fake nodes of an earlier one that are not asked for again are removed with their pods"
	for name, text := range map[string]string{"up --help": help.String(), "fake-nodes.md": string(page)} {
		if text = strings.Join(strings.Fields(text), " "); !strings.Contains(text, warning) {
			t.Errorf("%s does not say: %s", name, warning)
		}
	}
}
