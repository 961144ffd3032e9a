// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMemoGivesBack: the memo keeps no more than its budget, what was encoded lately, and nothing when nothing has been
// encoded for long; then it looks no more.
func TestMemoGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memo := NewMemo(1000)
		expect := func(when string, entries, bytes int) {
			t.Helper()
			synctest.Wait()
			memo.mu.Lock()
			defer memo.mu.Unlock()
			if len(memo.queue) != entries || memo.bytes != bytes || memo.sweepScheduled != (entries > 0) {
				t.Errorf("%s: %d entries of %d bytes, looks %v; want %d of %d", when, len(memo.queue), memo.bytes,
					memo.sweepScheduled, entries, bytes)
			}
		}
		keep := func(n int) {
			for range n {
				b := make([]byte, 100)
				memo.add(&b)
			}
		}
		keep(25)
		large := make([]byte, 126)
		memo.add(&large)
		expect("full", 10, 1000)
		time.Sleep(memoAge + time.Second)
		expect("after one look", 10, 1000)
		keep(3)
		expect("the oldest made room", 10, 1000)
		time.Sleep(memoAge)
		expect("after two", 3, 300)
		time.Sleep(memoAge)
		expect("after three", 0, 0)
		keep(1)
		expect("again", 1, 100)
		time.Sleep(2*memoAge + time.Second)
		expect("and over", 0, 0)
	})
}
