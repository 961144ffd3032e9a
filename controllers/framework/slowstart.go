// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"sync"
	"sync/atomic"
)

// atOnce bounds the calls of a batch that run at the same time: enough to share the store's group commits.
const atOnce = 128

// ErrTerminating ends a burst, and is no failure: nothing can be created in the namespace any more, and nothing needs to be.
var ErrTerminating = errors.New("namespace is being terminated")

// SlowStart calls f count times in parallel batches: the first of size first, each next one twice as large as the one
// before. A batch with a failure is the last, so that what cannot work (a quota, a broken template) costs few requests.
// It returns how many calls succeeded, the size of the last full batch, and the first error
// but ErrTerminating.
func SlowStart(count, first int, f func() error) (done, last int, err error) {
	for batch := min(count, max(1, first)); batch > 0; batch = min(2*batch, count-done) {
		var (
			wg     sync.WaitGroup
			mu     sync.Mutex
			failed error
			ok     int
		)
		var left atomic.Int64
		left.Store(int64(batch))
		for range min(batch, atOnce) {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					err := f()
					mu.Lock()
					if err == nil {
						ok++
					} else if failed == nil {
						failed = err
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		done += ok
		if errors.Is(failed, ErrTerminating) {
			return done, 0, nil
		}
		if failed != nil {
			return done, 0, failed
		}
		last = batch
	}
	return done, last, nil
}

// Parallel calls f for every item, at most limit at once, and returns the first error.
func Parallel[T any](items []T, limit int, f func(T) error) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	tokens := make(chan struct{}, max(1, limit))
	for _, item := range items {
		tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-tokens }()
			if err := f(item); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wg.Wait()
	return first
}
