// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBurstIsForgotten: what a burst left in the window goes when it is old, though nothing is added after it.
func TestBurstIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resource := &Resource{}
		const burst = 9000
		for i := range burst {
			time.Sleep(5 * time.Millisecond) // 45 s in all: what is forgotten goes when the last of it is old
			resource.mu.Lock()
			resource.addToWindowLocked(&change{rev: int64(i + 1), at: time.Now()})
			resource.mu.Unlock()
		}
		state := func() (n int, since int64, timer bool) {
			resource.mu.RLock()
			defer resource.mu.RUnlock()
			return len(resource.window.changes), resource.window.since, resource.expireScheduled
		}
		time.Sleep(windowAge / 4)
		if n, _, _ := state(); n != burst {
			t.Fatalf("%d changes remembered of a burst of a moment ago, want %d", n, burst)
		}
		time.Sleep(windowAge - windowAge/4)
		n, since, timer := state()
		if n != windowMin || since != burst-windowMin || timer {
			t.Errorf("%d changes since %d, timer %v; want %d since %d and none", n, since, timer, windowMin,
				burst-windowMin)
		}
		if got := resource.window.after(burst - 1); len(got) != 1 || got[0].rev != burst {
			t.Errorf("after the last but one: %d changes", len(got))
		}
	})
}
