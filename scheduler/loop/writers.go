// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"sync"
)

// maxWriters is the maximum number of concurrent writes to the server: enough to share its group commits.
const maxWriters = 96

// writers write to the API server, off the scheduling loop.
type writers struct{ jobs chan func(context.Context) }

func newWriters() *writers { return &writers{make(chan func(context.Context), maxWriters)} }

// run runs jobs until ctx is done.
func (w *writers) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range maxWriters {
		wg.Go(func() { w.runOne(ctx) })
	}
}

func (w *writers) runOne(ctx context.Context) {
	for {
		select {
		case job := <-w.jobs:
			job(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// enqueue gives a job (nil: none) to the writers. When all are busy, the caller waits for one.
func (w *writers) enqueue(ctx context.Context, job func(context.Context)) {
	if job == nil {
		return
	}
	select {
	case w.jobs <- job:
	case <-ctx.Done():
	}
}
