// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// enter takes a place in the background; the channel gets its leave function.
func enter(ctx context.Context, s *Shares, tenant string) <-chan func() {
	got := make(chan func(), 1)
	go func() { // ends with the place, or with ctx
		if leave, err := s.Enter(ctx, tenant); err == nil {
			got <- leave
		}
	}()
	return got
}

func has(got <-chan func()) bool { return len(got) == 1 }

// TestEachTenantHasAPlace: one that holds all common places keeps no one else out, and its own next ones wait.
func TestEachTenantHasAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		shares := New(3, 35)
		var greedy []<-chan func()
		for range 5 {
			greedy = append(greedy, enter(ctx, shares, "greedy"))
			synctest.Wait()
		}
		for i, got := range greedy {
			if has(got) != (i < 3) {
				t.Errorf("place %d of the greedy tenant: got %v", i, has(got))
			}
		}
		one := enter(ctx, shares, "one")
		two := enter(ctx, shares, "two")
		synctest.Wait()
		if !has(one) || !has(two) {
			t.Error("other tenants wait for the greedy one")
		}
		again := enter(ctx, shares, "one")
		synctest.Wait()
		if has(again) {
			t.Error("a second place was given though the common ones are taken")
		}
		(<-one)() // four are left, one tenant has none now
		synctest.Wait()
		if !has(again) || has(greedy[3]) {
			t.Errorf("after a place was given back: tenant one has it %v, the greedy one %v", has(again),
				has(greedy[3]))
		}
	})
}

// TestLimitOfAll: many tenants do not get more places than the limit, and no place is lost.
func TestLimitOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := New(2, 4)
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan func()
		for i := range 10 {
			all = append(all, enter(ctx, shares, fmt.Sprint(i)))
			synctest.Wait()
		}
		(<-all[0])()
		synctest.Wait()
		count := 0
		for _, got := range all {
			count += len(got)
		}
		if count != 4 || !has(all[4]) {
			t.Errorf("%d places are taken, want 4, and the first that waited to have one: %v", count, has(all[4]))
		}
		cancel()
		synctest.Wait()
		for _, got := range all {
			if has(got) {
				leave := <-got
				leave()
				leave()
			}
		}
		if shares.total != 0 || len(shares.held) != 0 || len(shares.waiting) != 0 {
			t.Errorf("left: %d places, of %v, %d wait", shares.total, shares.held, len(shares.waiting))
		}
		done, stop := context.WithCancelCause(t.Context())
		reason := errors.New("gone")
		stop(reason)
		for _, tenant := range []string{"a", "b"} {
			leave, err := shares.Enter(t.Context(), tenant)
			if err != nil {
				t.Fatal(err)
			}
			defer leave()
		}
		if _, err := shares.Enter(done, "b"); !errors.Is(err, reason) {
			t.Errorf("waiting with a context that ended: got %v, want %v", err, reason)
		}
	})
}
