// SPDX-License-Identifier: Apache-2.0

package image

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
)

// TestLateChallenge: the request for a manifest decides how to log in, whatever /v2/ answers.
func TestLateChallenge(t *testing.T) {
	open := func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }
	status := func(code int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(code) }
	}
	for name, ping := range map[string]func(http.ResponseWriter){
		"/v2/ is open":      open,
		"/v2/ is missing":   status(http.StatusNotFound),
		"/v2/ is forbidden": status(http.StatusForbidden),
		"/v2/ wants a password": func(w http.ResponseWriter) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		var mu sync.Mutex
		var seen []string
		host := lateRegistry(t, ping, func(line string) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, line)
		})
		imagetest.Push(t, host+"/any/thing:t", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
		store := newStore(t)
		if _, err := store.Pull(t.Context(), Request{Ref: host + "/any/thing:t"}); err != nil {
			t.Errorf("%s: got %v, requests %q", name, err, seen)
		}
		if got := strings.Count(strings.Join(seen, "\n"), "/token"); got != 1 {
			t.Errorf("%s: got %d requests for a token, want 1: %q", name, got, seen)
		}
		if _, err := store.Pull(t.Context(), Request{Ref: host + "/any/other:t"}); !errors.Is(err, manifest.ErrNotFound) {
			t.Errorf("%s: an image that is not there: got %v, want %v", name, err, manifest.ErrNotFound)
		}
	}
}

// lateRegistry gives manifests and blobs to those with a token alone, and answers /v2/ by ping. What is pushed needs
// no token.
func lateRegistry(t *testing.T, ping func(http.ResponseWriter), note func(string)) string {
	t.Helper()
	return imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		pushes := !strings.Contains(r.UserAgent(), "keelson")
		if !pushes {
			note(r.Method + " " + r.URL.Path)
		}
		switch {
		case pushes:
			next.ServeHTTP(w, r)
		case r.URL.Path == "/v2/":
			ping(w)
		case r.URL.Path == "/token":
			_, _ = w.Write([]byte(`{"token": "t"}`))
		case r.Header.Get("Authorization") != "Bearer t":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="r"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
