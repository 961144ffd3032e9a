// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"keelson/apiserver/pipeline"
)

// TestLargeWritesTakeTurns: at most one large write per CPU computes at a time, small writes do not wait, and the wait
// of a large write ends with its deadline.
func TestLargeWritesTakeTurns(t *testing.T) {
	request := func(length int64) *pipeline.Request { return &pipeline.Request{Info: pipeline.Info{Length: length}} }
	synctest.Test(t, func(t *testing.T) {
		before := largeWrites
		largeWrites = newLargeWrites() // of this test's bubble
		defer func() { largeWrites = before }()
		places := int64(runtime.GOMAXPROCS(0))
		var inside, most, late atomic.Int64
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		for i := range 10 * places {
			wg.Go(func() {
				err := InTurn(ctx, request([]int64{-1, largeWrite}[i%2]), func() error {
					n := inside.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
						runtime.Gosched()
					}
					time.Sleep(20 * time.Second)
					inside.Add(-1)
					return nil
				})
				if errors.Is(err, context.DeadlineExceeded) {
					late.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second)
		began := time.Now()
		if err := InTurn(ctx, request(1000), func() error { return nil }); err != nil || time.Since(began) != 0 {
			t.Errorf("a small write waited %v: %v", time.Since(began), err)
		}
		wg.Wait()
		if most.Load() != places || late.Load() != 5*places || time.Since(began) > 100*time.Second {
			t.Errorf("%d at once with %d places, %d were late after %v", most.Load(), places, late.Load(),
				time.Since(began))
		}
	})
}
