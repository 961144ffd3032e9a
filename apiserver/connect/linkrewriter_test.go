// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

var testLinks = linkRewriter{
	prefix:      "/api/v1/namespaces/a/pods/p/proxy",
	backend:     "10.1.2.3:80",
	requestHost: "api.example:6443",
}

func TestLink(t *testing.T) {
	for to, want := range map[string]string{
		"/x":                                    "/api/v1/namespaces/a/pods/p/proxy/x",
		"/":                                     "/api/v1/namespaces/a/pods/p/proxy/",
		"/x/?q=1#f":                             "/api/v1/namespaces/a/pods/p/proxy/x/?q=1#f",
		"/api/v1/namespaces/a/pods/p/proxy/x":   "/api/v1/namespaces/a/pods/p/proxy/x",
		"/api/v1/namespaces/a/pods/p/proxyless": "/api/v1/namespaces/a/pods/p/proxy/api/v1/namespaces/a/pods/p/proxyless",
		"http://10.1.2.3:80/x":                  "/api/v1/namespaces/a/pods/p/proxy/x",
		"https://api.example:6443/x":            "https://api.example:6443/api/v1/namespaces/a/pods/p/proxy/x",
		"http://other.example/x":                "http://other.example/x",
		"//other.example/x":                     "//other.example/x",
		"x/y":                                   "x/y",
		"?q":                                    "?q",
		"":                                      "",
		"mailto:me@example.com":                 "mailto:me@example.com",
		"http://[bad/x":                         "http://[bad/x",
	} {
		if got := testLinks.rewrite(to); got != want {
			t.Errorf("link(%q) = %q, want %q", to, got, want)
		}
	}
}

func TestPage(t *testing.T) {
	long := "<p title='" + strings.Repeat("y", 2*maxToken) + "'>" + `<a href="/z">`
	for in, want := range map[string]string{
		`<a href="/x">t</a>`:                             `<a href="/api/v1/namespaces/a/pods/p/proxy/x">t</a>`,
		`<IMG Alt='/no' SRC=/i.png />`:                   `<img alt="/no" src="/api/v1/namespaces/a/pods/p/proxy/i.png"/>`,
		`<p title="/x">&lt;/x</p><!-- <a href="/x"> -->`: `<p title="/x">&lt;/x</p><!-- <a href="/x"> -->`,
		`<script>"<a href='/x'>"</script>`:               `<script>"<a href='/x'>"</script>`,
		`<a href="/x`:                                    `<a href="/x`,
		"":                                               "",
		// a tag that is too long: the rest of the page is not changed
		long: long,
	} {
		got, err := io.ReadAll(newHTMLRewriter(iotest.HalfReader(strings.NewReader(in)), io.NopCloser(nil),
			testLinks.rewrite))
		if err != nil || string(got) != want {
			t.Errorf("page %.200q\ngot  %.200q, %v\nwant %.200q", in, got, err, want)
		}
	}
}

// FuzzPage: a page without links to rewrite is not changed.
func FuzzPage(f *testing.F) {
	for _, s := range []string{
		`<a href="/x">`, "<!doctype html><textarea><script><!--<script>", "<a href='", "\x00<\x00a href=\r\n/>",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := io.ReadAll(newHTMLRewriter(strings.NewReader(in), io.NopCloser(nil), func(s string) string {
			return s
		}))
		if err != nil || string(got) != in {
			t.Errorf("%q became %q, %v", in, got, err)
		}
	})
}
