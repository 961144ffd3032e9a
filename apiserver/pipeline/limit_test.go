// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"keelson/auth"
)

// TestLimitQueues: a burst is served in turn; a request that finds the queue full, or waits too long, is asked to
// retry.
func TestLimitQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		handler := limitInFlight(&Config{MaxReads: 1, MaxWrites: 1, Metrics: NewMetrics()},
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				<-release
			}))
		codes := map[int]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		send := func(groups ...string) {
			wg.Go(func() {
				rq := &Request{User: &auth.User{Name: "u", Groups: groups}}
				rq.IsResource = true
				rq.Verb = "create"
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil).WithContext(
					context.WithValue(t.Context(), requestKey{}, rq)))
				mu.Lock()
				defer mu.Unlock()
				codes[w.Code]++
			})
		}
		answers := func(code int) int { // who waits too long writes when a timer says so, after whatever is read here
			mu.Lock()
			defer mu.Unlock()
			return codes[code]
		}
		for range 1 + waitersPerSeat + 2 {
			send()
		}
		synctest.Wait()
		if answers(http.StatusTooManyRequests) != 2 || answers(http.StatusOK) != 0 {
			t.Errorf("one served, the queue full: got %d of 429 and %d of 200, want 2 of 429",
				answers(http.StatusTooManyRequests), answers(http.StatusOK))
		}
		for range 3 {
			release <- struct{}{}
		}
		synctest.Wait()
		if answers(http.StatusOK) != 3 {
			t.Errorf("three were released: got %d of 429 and %d of 200, want 3 of 200",
				answers(http.StatusTooManyRequests), answers(http.StatusOK))
		}
		send(auth.Masters)
		time.Sleep(maxWait + time.Second) // synctest's clock
		synctest.Wait()
		if want := 2 + waitersPerSeat - 3; answers(http.StatusTooManyRequests) != want {
			t.Errorf("after the longest wait: got %d of 429 and %d of 200, want %d of 429",
				answers(http.StatusTooManyRequests), answers(http.StatusOK), want)
		}
		close(release)
		wg.Wait()
		if answers(http.StatusOK) != 5 {
			t.Errorf("at the end: got %d of 429 and %d of 200, want 5 of 200", answers(http.StatusTooManyRequests),
				answers(http.StatusOK))
		}
	})
}
