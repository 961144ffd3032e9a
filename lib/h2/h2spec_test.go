// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"testing"
)

// TestH2Spec runs h2spec, the program that KEELSON_H2SPEC names (hack/h2spec builds it), which tests conformance to RFC
// 7540 and 7541.
func TestH2Spec(t *testing.T) {
	program := os.Getenv("KEELSON_H2SPEC")
	if program == "" {
		t.Skip("SKIPPED: `hack/h2spec` runs it")
	}
	ts, _ := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		// a response before the end of the request would end streams that h2spec still uses
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(make([]byte, 1000))
	})
	u, err := url.Parse(ts.URL)
	if err != nil {
		t.Fatal(err)
	}
	// a test's program
	out, err := exec.CommandContext(t.Context(), program, "--tls", "--insecure", "--host", u.Hostname(), "--port",
		u.Port(), "--timeout", "5").CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
