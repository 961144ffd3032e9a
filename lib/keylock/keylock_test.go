// SPDX-License-Identifier: Apache-2.0

package keylock_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"keelson/lib/keylock"
)

// TestLock: one holder at a time for a name, other names at the same time; a caller that gives up holds nothing.
func TestLock(t *testing.T) {
	var locks keylock.Locks
	a := locks.Lock("a")
	locks.Lock("b")() // waits for no one
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if unlock, err := locks.LockContext(ctx, "a"); !errors.Is(err, gone) || unlock != nil {
		t.Errorf("a turn that is taken, with a context that has ended: %v", err)
	}
	a()
	n := 0 // guarded by "a": the race detector and the sum would show two at once
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				unlock := locks.Lock("a")
				n++
				unlock()
			}
		})
	}
	wg.Wait()
	if n != 8000 {
		t.Errorf("%d turns, want 8000", n)
	}
}
