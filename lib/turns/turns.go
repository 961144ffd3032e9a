// SPDX-License-Identifier: Apache-2.0

// Package turns lets goroutines that compute for long take turns at the processors. The Go scheduler serves all runnable goroutines one
// after the other: with thousands of them, one that has little to do (a health check) waits seconds for its moment. Who takes a turn first
// is not runnable meanwhile. Handlers that encode lists and watches use it, and watches that go through what there is.
//
// Invariant: nobody waits for anything else (a client, a lock of others, a store) while it has a turn.
package turns

import (
	"context"
	"runtime"
	"sync/atomic"
)

// Gate has a number of places, given to those who wait in their order.
type Gate struct {
	places  chan struct{}
	waiting atomic.Int64
}

// New returns a gate of n places.
func New(n int) *Gate { return &Gate{places: make(chan struct{}, n)} }

// Processors is the gate of this process: two places for each processor.
var Processors = New(2 * runtime.GOMAXPROCS(0))

// Enter waits for a place.
func (g *Gate) Enter() {
	select {
	case g.places <- struct{}{}:
		return
	default:
	}
	g.waiting.Add(1)
	g.places <- struct{}{}
	g.waiting.Add(-1)
}

// EnterContext waits for a place until ctx is done. Who gets an error has no place.
func (g *Gate) EnterContext(ctx context.Context) error {
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	select {
	case g.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave gives the place back.
func (g *Gate) Leave() { <-g.places }

// Do runs f in a place, which is given back however f ends: a place that a panic took away would be missing for good.
func (g *Gate) Do(f func()) {
	g.Enter()
	defer g.Leave()
	f()
}

// Away gives the caller's place to others while f waits for something.
func (g *Gate) Away(f func()) {
	g.Leave()
	defer g.Enter()
	f()
}

// Yield lets others, if any wait, have the place first.
func (g *Gate) Yield() {
	if g.waiting.Load() > 0 {
		g.Leave()
		g.Enter()
	}
}
