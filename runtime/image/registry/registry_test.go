// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// roundTrips answers requests by a function and keeps them.
type roundTrips struct {
	mu     sync.Mutex
	seen   []*http.Request
	answer func(*http.Request) (code int, header http.Header, body []byte)
}

func (r *roundTrips) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, request.Clone(context.Background()))
	code, header, body := r.answer(request)
	return &http.Response{
		StatusCode:    code,
		Header:        header,
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       request,
	}, nil
}

// TestRequestsOfAPull: manifests are asked for with the types that are understood, and what authorizes a request goes
// to the registry's host alone, also when it redirects to another host.
func TestRequestsOfAPull(t *testing.T) {
	content := []byte("content")
	for scheme, authorization := range map[string]string{"Basic": "Basic bWU6c2VjcmV0", "Bearer": "Bearer given"} {
		trips := &roundTrips{answer: func(r *http.Request) (int, http.Header, []byte) {
			switch {
			case r.URL.Host == "cdn.example.com":
				return http.StatusOK, http.Header{"Content-Type": {imagetest.TypeManifest}}, content
			case r.URL.Path == "/token":
				return http.StatusOK, http.Header{}, []byte(`{"access_token":"given"}`)
			case r.Header.Get("Authorization") != authorization:
				challenge := scheme + ` realm="https://r.example.com/token",service="s"`
				return http.StatusUnauthorized, http.Header{"Www-Authenticate": {challenge}}, nil
			case r.URL.Path == "/v2/":
				return http.StatusOK, http.Header{}, nil
			}
			return http.StatusTemporaryRedirect, http.Header{"Location": {"https://cdn.example.com" + r.URL.Path}}, nil
		}}
		repo, err := name.NewRepository("r.example.com/app")
		if err != nil {
			t.Fatal(err)
		}
		auth := authn.FromConfig(authn.AuthConfig{Username: "me", Password: "secret"})
		rt, err := (&login{repo: repo, auth: auth, out: trips}).start(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		source := &Repository{repo: repo, rt: rt}
		if _, _, err := source.document(t.Context(), "manifests", "t"); err != nil {
			t.Errorf("%s: manifest: %v", scheme, err)
		}
		body, err := source.Blob(t.Context(), manifest.DigestOf(content), int64(len(content)), func(int64) {})
		if err != nil {
			t.Fatalf("%s: blob: %v", scheme, err)
		}
		if err := errors.Join(body.Verify(), body.Close()); err != nil {
			t.Errorf("%s: blob: %v", scheme, err)
		}
		away := 0
		for _, r := range trips.seen {
			if r.URL.Host == "cdn.example.com" {
				away++
				if got := r.Header.Get("Authorization"); got != "" {
					t.Errorf("%s: another host got %q", scheme, got)
				}
			}
			if accept := r.Header.Get("Accept"); strings.Contains(r.URL.Path, "/manifests/") &&
				(!strings.Contains(accept, imagetest.TypeIndex) || !strings.Contains(accept, imagetest.TypeDockerManifest)) {
				t.Errorf("%s: a manifest is asked for with Accept %q", scheme, accept)
			}
			if r.Method != http.MethodGet {
				t.Errorf("%s: %s %s", scheme, r.Method, r.URL)
			}
		}
		if away != 2 {
			t.Errorf("%s: %d requests were redirected, want 2", scheme, away)
		}
	}
}

func TestPlainHTTPIsForLoopbackAlone(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost":             true,
		"localhost:5000":        true,
		"127.0.0.1:5000":        true,
		"127.9.9.9":             true,
		"[::1]:5000":            true,
		"10.0.0.1:5000":         false,
		"docker.io":             false,
		"localhost.example.com": false,
		"192.168.1.1":           false,
		"notlocalhost:80":       false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("isLoopback(%q): got %v, want %v", host, got, want)
		}
	}
	// named without TLS, and not named
	for host, plain := range map[string]bool{"10.0.0.1": false, "registry.example.com": true} {
		out := &door{connections: noSettings(t), host: host, plain: plain}
		req := httptest.NewRequest(http.MethodGet, "http://10.0.0.1/v2/", nil)
		if resp, err := out.RoundTrip(req); err == nil ||
			!strings.Contains(err.Error(), `refusing plain HTTP to "10.0.0.1"`) {
			t.Errorf("from %s: got %v, %v", host, resp, err)
		}
	}
}
