// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestProxyPages: the service proxy has /statusz, and /flagz with its own flags alone: any program on the node can read
// them.
func TestProxyPages(t *testing.T) {
	all := map[string]string{"metrics-bind-address": "127.0.0.1:10249", "oidc-client-id": "keelson"}
	handler := proxyPages(func() map[string]string { return all })
	for path, says := range map[string]string{
		"/statusz": "Paths: /flagz /healthz /proxyMode /statusz",
		"/flagz":   "metrics-bind-address: 127.0.0.1:10249",
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		text := answer.Body.String()
		if !strings.Contains(text, "kube-proxy") || !strings.Contains(text, says) || strings.Contains(text, "oidc") {
			t.Errorf("%s: %s", path, text)
		}
	}
	if len(all) != 2 {
		t.Errorf("the flags are %v", all)
	}
}
