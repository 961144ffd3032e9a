// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestListsOpenNoWatch: an informer that asks for a watch with a list is to list, and a watch after a list brings
// nothing; neither reaches the API, where it would need a seat.
func TestListsOpenNoWatch(t *testing.T) {
	passed := 0
	handler := lists{http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ })}
	get := func(query string) *httptest.ResponseRecorder {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a watch ends with its context
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/pods?"+query, http.NoBody))
		return w
	}
	if w := get("watch=true&sendInitialEvents=true"); w.Code != http.StatusBadRequest || passed != 0 {
		t.Errorf("a watch with a list: %d, %d passed on", w.Code, passed)
	}
	if w := get("watch=true&resourceVersion=7"); w.Code != http.StatusOK || !w.Flushed || w.Body.Len() > 0 || passed != 0 {
		t.Errorf("a watch: %d %q, flushed %t, %d passed on", w.Code, w.Body, w.Flushed, passed)
	}
	if get("limit=500"); passed != 1 {
		t.Errorf("%d lists passed on, want 1", passed)
	}
}
