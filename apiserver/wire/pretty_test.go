// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/http/httptest"
	"testing"
)

// TestPretty: what a person reads is indented and ends with the last brace; what a program reads ends with a newline.
func TestPretty(t *testing.T) {
	for _, c := range []struct{ target, agent, want string }{
		{"/", "curl/8", "{\n  \"a\": 1\n}"},
		{"/", "Mozilla/5.0 (X11)", "{\n  \"a\": 1\n}"},
		{"/?pretty=true", "kubectl", "{\n  \"a\": 1\n}"},
		{"/?pretty=0", "curl/8", "{\"a\":1}\n"},
		{"/", "kubectl", "{\"a\":1}\n"},
	} {
		r := httptest.NewRequest("GET", c.target, nil)
		r.Header.Set("User-Agent", c.agent)
		want, err := Negotiate(r, func(MediaTypeOptions) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		WriteBytes(w, r, 200, []byte("{\"a\":1}\n"), want)
		if got := w.Body.String(); got != c.want {
			t.Errorf("%s to %s: got %q, want %q", c.target, c.agent, got, c.want)
		}
	}
}
