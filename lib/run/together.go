// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Part is a named Func.
type Part struct {
	Name string
	Run  Func
}

// Together returns a Func that runs independent parts concurrently. It is ready when all are, and ends, with the first
// error, when one of them ends. started, which may be nil, is called for each part; calls do not overlap.
func Together(started func(name string, took time.Duration), parts ...Part) Func {
	return func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		begin := time.Now()
		var up, all sync.WaitGroup
		var mu, reporting sync.Mutex
		var first error
		up.Add(len(parts))
		for _, part := range parts {
			all.Go(func() {
				var once sync.Once
				isUp := func() { once.Do(up.Done) }
				defer isUp()
				err := part.Run(ctx, func() {
					once.Do(func() {
						if started != nil {
							reporting.Lock()
							started(part.Name, time.Since(begin))
							reporting.Unlock()
						}
						up.Done()
					})
				})
				if err == nil && ctx.Err() == nil {
					err = errors.New("ended before it was stopped")
				}
				mu.Lock()
				if first == nil && err != nil && ctx.Err() == nil {
					first = fmt.Errorf("%s: %w", part.Name, err)
				}
				mu.Unlock()
				cancel()
			})
		}
		up.Wait()
		if ctx.Err() == nil {
			ready()
		}
		all.Wait()
		return first
	}
}
