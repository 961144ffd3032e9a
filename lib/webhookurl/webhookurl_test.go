// SPDX-License-Identifier: Apache-2.0

package webhookurl

import "testing"

// TestClean: envtest of controller-runtime writes a double slash into the URLs of webhooks.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"https://127.0.0.1:8443//validate": "https://127.0.0.1:8443/validate",
		"https://127.0.0.1:8443":           "https://127.0.0.1:8443/",
		"https://hook.example.com/a/b/":    "https://hook.example.com/a/b",
		"https://hook.example.com/a/../b":  "https://hook.example.com/b",
	} {
		if got, err := Clean(text); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	if got, err := Clean("https://[::1"); err == nil {
		t.Errorf("a broken URL becomes %s", got)
	}
}
