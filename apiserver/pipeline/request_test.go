// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
)

// TestEarlyAnswer: a server behind a proxy that answers early, as any pod may, is recorded with its last code, and the
// answer has the id under which it is audited.
func TestEarlyAnswer(t *testing.T) {
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer pod.Close()
	target, err := url.Parse(pod.URL)
	if err != nil {
		t.Fatal(err)
	}
	code := 0
	server := httptest.NewServer(parse(nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy := httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(target) }}
		proxy.ServeHTTP(w, r)
		code = w.(*responseRecorder).code
	})))
	defer server.Close()
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	server.Close() // the handler has returned
	if code != http.StatusTeapot || resp.StatusCode != http.StatusTeapot {
		t.Errorf("recorded code %d, sent %d", code, resp.StatusCode)
	}
	if resp.Header.Get("Audit-Id") == "" {
		t.Error("the answer has no audit id")
	}
}
