// SPDX-License-Identifier: Apache-2.0

// Package cpusem limits the number of goroutines that compute at the same time, with a FIFO semaphore. The Go scheduler
// runs all runnable goroutines in turn: with thousands of them, a short task such as a health check waits for seconds.
// Goroutines that wait for the semaphore are not runnable. Handlers that encode lists and watches use it, and
// lib/connlimit for handshakes.
//
// Invariant: a goroutine never waits for anything else (a client, a shared lock, a store) while it has a place.
package cpusem

import (
	"context"
	"runtime"
	"sync/atomic"
)

// Gate is a FIFO semaphore.
type Gate struct {
	places  chan struct{}
	waiting atomic.Int64
}

// New returns a gate of n places.
func New(n int) *Gate { return &Gate{places: make(chan struct{}, n)} }

// Processors is the gate of this process, with two places for each CPU.
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

// EnterContext waits for a place until ctx is done. After an error the caller has no place.
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

// Leave frees the place.
func (g *Gate) Leave() { <-g.places }

// Do runs f with a place, which it frees also after a panic.
func (g *Gate) Do(f func()) {
	g.Enter()
	defer g.Leave()
	f()
}

// Away frees the caller's place while f waits for something.
func (g *Gate) Away(f func()) {
	g.Leave()
	defer g.Enter()
	f()
}

// Yield frees the place and enters again, if others wait.
func (g *Gate) Yield() {
	if g.waiting.Load() > 0 {
		g.Leave()
		g.Enter()
	}
}
