// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"keelson/auth"
)

// byPath lets every user ask, and ann read.
type byPath struct{}

func (byPath) Authorize(_ context.Context, a *auth.Attributes) (auth.Decision, error) {
	if a.Path == "/ask" || a.User.Name == "ann" {
		return auth.Decision{Verdict: auth.Allow}, nil
	}
	return auth.Decision{}, nil
}

// TestFurther: what a handler asks to answer a request passes the filters as the request's user, and needs no seat of
// its own: with the only seat taken by the question it would wait for itself.
func TestFurther(t *testing.T) {
	for user, want := range map[string]int{"ann": http.StatusOK, "bob": http.StatusForbidden} {
		h := New(Config{Authorizer: byPath{}, MaxReads: 1}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rq := From(r.Context())
			if r.URL.Path == "/ask" {
				further := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/read", http.NoBody)
				further.Header.Set("Authorization", "Bearer of-somebody-else")
				rq.Further().ServeHTTP(w, further)
				return
			}
			_, _ = w.Write([]byte(rq.User.Name))
		}))
		w := httptest.NewRecorder()
		ctx := auth.WithUser(t.Context(), &auth.User{Name: user})
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/ask", http.NoBody))
		if w.Code != want || want == http.StatusOK && w.Body.String() != user {
			t.Errorf("%s: %d %s, want %d", user, w.Code, w.Body, want)
		}
	}
}
