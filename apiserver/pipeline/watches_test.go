// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"keelson/auth"
)

// TestWatchShares: one namespace's accounts have half of the watches of tenants alone, and give them back.
func TestWatchShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		wait := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })
		h := limitInFlight(&Config{MaxStreams: 1, MaxTenantWatches: 8, Metrics: NewMetrics()}, wait)
		var refused atomic.Int64
		var wg sync.WaitGroup
		watch := func(u auth.User) {
			wg.Go(func() {
				rq := &Request{User: &u}
				rq.IsResource = true
				rq.Verb = "watch"
				w := httptest.NewRecorder()
				ctx := context.WithValue(t.Context(), requestKey{}, rq)
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
				if w.Code == http.StatusTooManyRequests {
					refused.Add(1)
				}
			})
		}
		const account = "system:serviceaccount:team:"
		for i := range 6 {
			watch(auth.User{Name: account + strconv.Itoa(i)})
		}
		synctest.Wait()
		if got := refused.Load(); got != 2 {
			t.Errorf("%d of 6 watches of one namespace's accounts were refused, want 2", got)
		}
		for range 20 {
			watch(auth.User{Name: "root", Groups: []string{auth.Masters}})
			watch(auth.User{Name: "system:node:n"})
		}
		watch(auth.User{Name: "alice"})
		synctest.Wait()
		if got := refused.Load(); got != 2 {
			t.Errorf("%d watches of others were refused", got-2)
		}
		close(release)
		wg.Wait()
		watch(auth.User{Name: account + "late"})
		wg.Wait()
		if got := refused.Load(); got != 2 {
			t.Error("watches that ended still count")
		}
	})
}
