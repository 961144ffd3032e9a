// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"sync"
)

// Feed is what a backend delivers a watch's batches with; it returns when ctx ends, or with what ends the watch.
type Feed func(ctx context.Context, events chan<- []Event) error

// Fed is the Watcher that feed fills. start must call what it is given on a goroutine of the backend's.
func Fed(ctx context.Context, start func(func()), feed Feed) Watcher {
	ctx, stop := context.WithCancel(ctx)
	w := &fed{events: make(chan []Event), stop: stop}
	start(func() {
		defer close(w.events)
		defer stop()
		if err := feed(ctx, w.events); err != nil && ctx.Err() == nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
		}
	})
	return w
}

type fed struct {
	events chan []Event
	stop   context.CancelFunc

	mu  sync.Mutex
	err error
}

func (w *fed) Events() <-chan []Event { return w.events }

func (w *fed) Stop() { w.stop() }

func (w *fed) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
