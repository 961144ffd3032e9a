// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestBrowserToken(t *testing.T) {
	const hidden = "base64url.bearer.authorization.k8s.io.dG9rZW4" // "token"
	for _, c := range []struct {
		name              string
		upgrade           string
		protocols         []string
		authorization     string
		wantAuthorization string
		wantProtocols     string
	}{
		{
			"next to a protocol", "websocket",
			[]string{"v4.channel.k8s.io, " + hidden},
			"", "Bearer token",
			"v4.channel.k8s.io",
		},
		{
			"on a line of its own", "websocket",
			[]string{hidden, "v4.channel.k8s.io"},
			"", "Bearer token",
			"v4.channel.k8s.io",
		},
		{"alone", "websocket", []string{hidden}, "", "", ""},
		{"twice", "websocket", []string{hidden + "," + hidden + ",x"}, "", "", "x"},
		{"not base64", "websocket", []string{"base64url.bearer.authorization.k8s.io.***, x"}, "", "", "x"},
		{"not text", "websocket", []string{"base64url.bearer.authorization.k8s.io._w, x"}, "", "", "x"},
		{"another way is named", "websocket", []string{hidden + ", x"}, "Bearer other", "Bearer other", "x"},
		{"none", "websocket", []string{"x, y"}, "", "", "x, y"},
		{"no websocket", "", []string{hidden + ", x"}, "", "", hidden + ", x"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		if c.upgrade != "" {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", c.upgrade)
		}
		r.Header["Sec-Websocket-Protocol"] = c.protocols
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		browserToken(r)
		if a, p := r.Header.Get("Authorization"), r.Header.Get("Sec-Websocket-Protocol"); a != c.wantAuthorization ||
			p != c.wantProtocols {
			t.Errorf("%s: Authorization %q, protocols %q; want %q, %q", c.name, a, p, c.wantAuthorization,
				c.wantProtocols)
		}
	}
}
