// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Reply is an answer read to its end.
type Reply struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Status reads the answer as a Status.
func (r Reply) Status(t testing.TB) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(r.Body, &s); err != nil {
		t.Fatalf("answer %d is not a Status: %v: %s", r.Code, err, r.Body)
	}
	return s
}

// Warnings are the texts of the Warning headers.
func (r Reply) Warnings() []string {
	var out []string
	for _, h := range r.Header.Values("Warning") {
		h = strings.TrimPrefix(h, `299 - "`)
		out = append(out, strings.ReplaceAll(strings.TrimSuffix(h, `"`), `\"`, `"`))
	}
	return out
}

// Into reads the answer's JSON.
func (r Reply) Into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(r.Body, v); err != nil {
		t.Fatalf("answer %d: %v: %s", r.Code, err, r.Body)
	}
}

// Wants fails unless the answer has the code and, for a failure, a message that contains text.
func (r Reply) Wants(t testing.TB, what string, code int, text string) {
	t.Helper()
	switch {
	case r.Code != code:
		t.Errorf("%s: got %d, want %d: %s", what, r.Code, code, Short(r.Body))
	case code >= 300:
		if s := r.Status(t); !strings.Contains(s.Message, text) || int(s.Code) != code {
			t.Errorf("%s: message %q (code %d), want %q", what, s.Message, s.Code, text)
		}
	case !strings.Contains(string(r.Body), text):
		t.Errorf("%s: answer %s, want %q in it", what, Short(r.Body), text)
	}
}

// Short returns the begin of an answer, for messages.
func Short(b []byte) string {
	if len(b) > 600 {
		return string(b[:600]) + "..."
	}
	return string(b)
}

// Call makes one request as the administrator. headers come in pairs.
func (r *Running) Call(t testing.TB, method, path, body string, headers ...string) Reply {
	t.Helper()
	return CallAs(t, r.Rest, method, path, body, headers...)
}

// CallAs makes one request with a client configuration. headers come in pairs.
func CallAs(t testing.TB, cfg *rest.Config, method, path, body string, headers ...string) Reply {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, cfg.Host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", cfg.UserAgent)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end below
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return Reply{resp.StatusCode, resp.Header, b}
}

// MapsPath is the path of the ConfigMaps of the namespace default.
const MapsPath = "/api/v1/namespaces/default/configmaps"

// The media types of patches.
const (
	JSONPatch      = "application/json-patch+json"
	MergePatch     = "application/merge-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
	ApplyPatch     = "application/apply-patch+yaml"
)

// Gauge reads one line of the metrics.
func (r *Running) Gauge(t *testing.T, line string) string {
	t.Helper()
	for text := range strings.SplitSeq(string(r.Call(t, "GET", "/metrics", "", "Accept", "text/plain").Body), "\n") {
		if value, ok := strings.CutPrefix(text, line+" "); ok {
			return value
		}
	}
	return ""
}
