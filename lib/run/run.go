// SPDX-License-Identifier: Apache-2.0

// Package run starts the parts of a program in order and stops them in reverse
// order. cluster and the single-role commands use it. It knows nothing about the
// parts.
package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"keelson/lib/signal"
)

// Func runs a part. It calls ready when the part works, and returns when all its
// goroutines have ended: nil after ctx is done, or an error when it cannot
// continue. Calling ready twice is harmless.
type Func func(ctx context.Context, ready func()) error

// Group is an ordered list of parts. The zero value is an empty group with a grace of 10 s.
type Group struct {
	// Grace is the maximum time that one part may take to stop.
	Grace time.Duration
	// Started is called for each part that became ready, with the time it took; it may be nil.
	Started func(name string, took time.Duration)

	parts []part
}

type part struct {
	name string
	run  Func
}

// Add appends a part; it starts after all earlier parts are ready.
func (g *Group) Add(name string, run Func) { g.parts = append(g.parts, part{name, run}) }

type running struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Run starts every part in order, each once the one before is ready, calls
// ready when all are, and blocks until ctx is done or a part returns. It then
// stops the parts in reverse order and returns the first error.
func (g *Group) Run(ctx context.Context, ready func()) error {
	// A part is not canceled by ctx, but when it is its turn to stop.
	base := context.WithoutCancel(ctx)
	ended := make(chan *running, len(g.parts))
	var up []*running
	var first error
	for _, p := range g.parts {
		r, err := g.start(ctx, base, p, ended)
		if r != nil {
			up = append(up, r)
		}
		if err != nil {
			first = err
			break
		}
	}
	if first == nil && ctx.Err() == nil {
		ready()
		select {
		case <-ctx.Done():
		case r := <-ended:
			first = r.reason()
		}
	}
	return errors.Join(first, g.stop(up, first))
}

func (g *Group) start(ctx, base context.Context, p part, ended chan<- *running) (*running, error) {
	if ctx.Err() != nil {
		return nil, nil //nolint:nilerr // the group is stopping
	}
	begin := time.Now()
	pctx, cancel := context.WithCancel(base)
	r := &running{name: p.name, cancel: cancel, done: make(chan struct{})}
	isReady := signal.New()
	go func() { // ends when the part returns, which stop waits for
		r.err = p.run(pctx, isReady.Notify)
		close(r.done)
		ended <- r
	}()
	select {
	case <-isReady.C():
		if g.Started != nil {
			g.Started(p.name, time.Since(begin))
		}
		return r, nil
	case <-r.done:
		return r, r.reason()
	case <-ctx.Done():
		return r, nil
	}
}

func (r *running) reason() error {
	if r.err == nil {
		return fmt.Errorf("%s ended before it was stopped", r.name)
	}
	return fmt.Errorf("%s: %w", r.name, r.err)
}

func (g *Group) stop(up []*running, first error) error {
	grace := g.Grace
	if grace == 0 {
		grace = 10 * time.Second
	}
	var err error
	for _, r := range slices.Backward(up) {

		r.cancel()
		timer := time.NewTimer(grace)
		select {
		case <-r.done:
			if err == nil && first == nil && r.err != nil && !errors.Is(r.err, context.Canceled) {
				err = r.reason()
			}
		case <-timer.C:
			if err == nil {
				err = fmt.Errorf("%s did not stop within %s", r.name, grace)
			}
		}
		timer.Stop()
	}
	return err
}
