// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"keelson/timeline/story"
)

// TestFollowsNewPod: a pod that a watcher saw before its creation was recorded is followed, and not said to be older
// than the server.
func TestFollowsNewPod(t *testing.T) {
	created := time.Now().Truncate(time.Second)
	late := story.Story{
		Namespace:     "default",
		Name:          "late",
		UID:           "u",
		Partial:       true,
		RecordedSince: created.Add(-time.Hour),
		Start:         created.Add(300 * time.Millisecond),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/keelson/v1/timeline/default/late":
			out := json.NewEncoder(w)
			_ = out.Encode(late)
			if r.URL.Query().Get("follow") == "true" {
				whole := late
				whole.Partial = false
				whole.Done = true
				whole.Phase = "Succeeded"
				_ = out.Encode(whole)
			}
		case "/api/v1/namespaces/default/pods/late":
			_, _ = fmt.Fprintf(w, `{"metadata": {"name": "late", "uid": "u", "creationTimestamp": %q}}`,
				created.UTC().Format(time.RFC3339))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":%q}}],"users":[{"name":"a","user":{}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, said bytes.Buffer
	code := Run(t.Context(), []string{"keelson", "timeline", "pod/late", "--follow", "--kubeconfig", kubeconfig}, Stdio{
		In:  strings.NewReader(""),
		Out: &out,
		Err: &said,
	})
	if code != 0 || strings.Contains(out.String(), "made before") || strings.Count(out.String(), "created ") != 2 ||
		!strings.Contains(out.String(), "Succeeded") {
		t.Errorf("got %d, %q and\n%s\nwant two stories of a new pod, up to its end", code, said.String(), out.String())
	}
}
