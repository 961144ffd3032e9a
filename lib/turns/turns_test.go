// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestGate: never more than its places are taken, and everybody gets one.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, many, steps = 3, 100, 10
		g := New(places)
		var inside, most, done atomic.Int64
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() {
				g.Enter()
				for range steps {
					most.Store(max(most.Load(), inside.Add(1)))
					inside.Add(-1)
					g.Yield()
				}
				g.Leave()
				done.Add(1)
			})
		}
		wg.Wait()
		if most.Load() > places || done.Load() != many || g.waiting.Load() != 0 || len(g.places) != 0 {
			t.Errorf("at most %d at once, %d done, %d waiting, %d inside", most.Load(), done.Load(), g.waiting.Load(), len(g.places))
		}
	})
}
