// SPDX-License-Identifier: Apache-2.0

package apiserver_test

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

// reply is an answer read to its end.
type reply struct {
	Code   int
	Header http.Header
	Body   []byte
}

// status reads the answer as a Status.
func (r reply) status(t testing.TB) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(r.Body, &s); err != nil {
		t.Fatalf("answer %d is not a Status: %v: %s", r.Code, err, r.Body)
	}
	return s
}

// warnings are the texts of the Warning headers.
func (r reply) warnings() []string {
	var out []string
	for _, h := range r.Header.Values("Warning") {
		h = strings.TrimPrefix(h, `299 - "`)
		out = append(out, strings.ReplaceAll(strings.TrimSuffix(h, `"`), `\"`, `"`))
	}
	return out
}

// into reads the answer's JSON.
func (r reply) into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(r.Body, v); err != nil {
		t.Fatalf("answer %d: %v: %s", r.Code, err, r.Body)
	}
}

// wants fails unless the answer has the code and, for a failure, a message that contains text.
func (r reply) wants(t testing.TB, what string, code int, text string) {
	t.Helper()
	switch {
	case r.Code != code:
		t.Errorf("%s: got %d, want %d: %s", what, r.Code, code, short(r.Body))
	case code >= 300:
		if s := r.status(t); !strings.Contains(s.Message, text) || int(s.Code) != code {
			t.Errorf("%s: message %q (code %d), want %q", what, s.Message, s.Code, text)
		}
	case !strings.Contains(string(r.Body), text):
		t.Errorf("%s: answer %s, want %q in it", what, short(r.Body), text)
	}
}

func short(b []byte) string {
	if len(b) > 600 {
		return string(b[:600]) + "..."
	}
	return string(b)
}

// call makes one request as the administrator. headers come in pairs.
func (r *running) call(t testing.TB, method, path, body string, headers ...string) reply {
	t.Helper()
	return callAs(t, r.rest, method, path, body, headers...)
}

func callAs(t testing.TB, cfg *rest.Config, method, path, body string, headers ...string) reply {
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
	return reply{resp.StatusCode, resp.Header, b}
}
