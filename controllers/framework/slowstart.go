// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"sync"
	"sync/atomic"
)

// maxParallel limits concurrent calls of a batch: enough to benefit from the store's group commits.
const maxParallel = 128

// ErrTerminating ends a batch without counting as a failure: nothing can be created in a terminating namespace.
var ErrTerminating = errors.New("namespace is being terminated")

// SlowStart calls f count times in parallel batches; each batch is twice as large as the one before, starting with
// first. It stops after a batch with a failure, so that a permanent error (a quota, an invalid template) costs few
// requests. It returns the number of successful calls, the size of the last complete batch, and the first error except
// ErrTerminating.
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
		for range min(batch, maxParallel) {
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

// Parallel calls f for every item with at most limit concurrent calls, and returns the first error.
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
