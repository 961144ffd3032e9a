// SPDX-License-Identifier: Apache-2.0

package cpusem

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestGate: never more than its places are taken, and everybody gets one.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, many, steps = 3, 100, 10
		gate := New(places)
		var inside, most, done atomic.Int64
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() {
				gate.Enter()
				for range steps {
					n := inside.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
						runtime.Gosched()
					}
					inside.Add(-1)
					gate.Yield()
				}
				gate.Leave()
				done.Add(1)
			})
		}
		wg.Wait()
		if most.Load() > places || done.Load() != many || gate.waiting.Load() != 0 || len(gate.places) != 0 {
			t.Errorf("at most %d at once, %d done, %d waiting, %d inside", most.Load(), done.Load(),
				gate.waiting.Load(),
				len(gate.places))
		}
	})
}

// TestPanic: a place is given back by who panics, also while it was away.
func TestPanic(t *testing.T) {
	gate := New(1)
	for _, f := range []func(){
		func() { panic("inside") },
		func() { gate.Away(func() { panic("away") }) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			gate.Do(f)
		}()
		if n := len(gate.places); n != 0 {
			t.Fatalf("%d places are still taken", n)
		}
	}
}
