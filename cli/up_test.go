// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
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

// TestReady: the port that --etcd-listen with port 0 chose is printed, and nothing where there is no etcd API.
func TestReady(t *testing.T) {
	for etcd, want := range map[string]string{
		"":                        "ready in 7 ms   API at https://a\nnext: keelson kubectl --data-dir /d get nodes\n",
		"https://127.0.0.1:34891": "ready in 7 ms   API at https://a\netcd API at https://127.0.0.1:34891\nnext: keelson ",
	} {
		var out bytes.Buffer
		newProgress(&out).ready("https://a", etcd, 7*time.Millisecond, upFlags{dataDir: "/d"})
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("etcd %q: got\n%s\nwant\n%s", etcd, out.String(), want)
		}
	}
}
