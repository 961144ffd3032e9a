// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"keelson/apiserver/pipeline"
	"keelson/auth"
)

// named authenticates by the header X-User and allows everything.
type named struct{}

func (named) Authenticate(r *http.Request) (*auth.User, bool, error) {
	u := &auth.User{Name: r.Header.Get("X-User")}
	if u.Name == "admin" {
		u.Groups = []string{auth.Masters}
	}
	return u, true, nil
}

func (named) Authorize(context.Context, *auth.Attributes) (auth.Decision, error) {
	return auth.Decision{Verdict: auth.Allow}, nil
}

// TestHeavyBodies: a tenant has one document of many parts at a time, until the handler returns, whether or not the
// client waits; others, administrators and small documents do not wait for it.
func TestHeavyBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := heavy
		heavy = newHeavyBodies() // of this test's bubble
		defer func() { heavy = before }()
		finish := make(chan struct{})
		var mu sync.Mutex
		running := map[string]int{}
		count := func(name string, n int) {
			mu.Lock()
			defer mu.Unlock()
			running[name] += n
		}
		h := pipeline.New(pipeline.Config{
			Authenticators: []auth.Authenticator{named{}},
			Authorizer:     named{},
		}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := withBody(r, func([]byte) error { return nil }); err != nil {
				return
			}
			name := r.Header.Get("X-User")
			count(name, 1)
			<-finish
			count(name, -1)
		}))
		many := "[" + strings.Repeat("{},", manyParts) + "{}]"
		send := func(ctx context.Context, user, body string) {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/api/v1/namespaces/a/pods",
				strings.NewReader(body))
			r.Header.Set("X-User", user)
			go h.ServeHTTP(httptest.NewRecorder(), r) // ends with finish, or with ctx
			synctest.Wait()
		}
		want := func(what, user string, n int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if running[user] != n {
				t.Errorf("%s: %d of %s run, want %d", what, running[user], user, n)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		send(ctx, "a", many)
		send(t.Context(), "a", many)
		send(t.Context(), "a", strings.Repeat(" ", largeBody)) // its parts are not known
		want("documents of many parts", "a", 1)
		send(t.Context(), "a", `{"small":true}`)
		want("a small document", "a", 2)
		send(t.Context(), "b", many)
		want("another tenant's", "b", 1)
		send(t.Context(), "admin", many)
		send(t.Context(), "admin", many)
		want("an administrator's", "admin", 2)
		cancel()
		synctest.Wait()
		want("after the client left", "a", 2)
		for range 5 {
			finish <- struct{}{}
		}
		synctest.Wait()
		want("after the first have ended", "a", 1)
		close(finish)
		synctest.Wait()
		want("at the end", "a", 0)
	})
}

// TestLargeBodiesWait: a tenant reads 16 large bodies at a time; one of unknown length counts as large.
func TestLargeBodiesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeavyBodies()
		rq := &pipeline.Request{User: &auth.User{Name: "a"}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		enter := func(length int64) (leave func()) {
			go func() { // ends with a place, or with ctx
				if got, err := h.read(ctx, rq, length); err == nil {
					leave = got
				}
			}()
			synctest.Wait()
			return leave
		}
		first := enter(-1)
		for range 15 {
			enter(largeBody)
		}
		if first == nil || enter(largeBody) != nil {
			t.Error("a tenant reads none, or more than 16 large bodies")
		}
		if enter(largeBody-1) == nil {
			t.Error("a small body waits")
		}
		if _, err := h.read(ctx, &pipeline.Request{User: &auth.User{Name: "b"}}, -1); err != nil {
			t.Error(err)
		}
	})
}
