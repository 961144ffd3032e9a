// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestHealthIsShared: a hundred checks a second cost etcd two questions, and no result is older than healthAge.
func TestHealthIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var state error
		h := health{ask: func(context.Context) error {
			asked++
			return state
		}}
		for range 1000 {
			if err := h.get(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if asked != 20 {
			t.Errorf("1,000 checks in 10 s asked etcd %d times, want 20", asked)
		}
		away := errors.New("away")
		for _, want := range []error{away, nil} {
			state = want
			time.Sleep(healthAge)
			if err := h.get(t.Context()); !errors.Is(err, want) {
				t.Errorf("after the change: got %v, want %v", err, want)
			}
		}
	})
}

// TestHealthOfAnEtcdThatHangs: all checks wait for one question, each as long as its own context.
func TestHealthOfAnEtcdThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		release := make(chan struct{})
		h := health{ask: func(context.Context) error {
			asked.Add(1)
			<-release
			return nil
		}}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				if err := h.get(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want the end of the caller's time", err)
				}
			})
			time.Sleep(300 * time.Millisecond)
		}
		wg.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
		close(release)
		if err := h.get(t.Context()); err != nil {
			t.Errorf("after the answer: %v", err)
		}
	})
}
