// SPDX-License-Identifier: Apache-2.0

// Package keylock lets those who work on the same thing, known by its name, take turns, and nobody else wait for them: the sandboxes of a
// pod network, snapshots, layers of images.
package keylock

import (
	"context"
	"sync"
)

// Locks are locks by name. The zero value holds none. Names that nobody holds take no memory.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed and removed when given back
}

// Lock takes the turn for a name; the returned function gives it back.
func (l *Locks) Lock(name string) (unlock func()) {
	unlock, _ = l.LockContext(context.Background(), name) // which does not end
	return unlock
}

// LockContext is Lock until ctx ends; the error is then its cause.
func (l *Locks) LockContext(ctx context.Context, name string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		held, ok := l.held[name]
		if !ok {
			mine := make(chan struct{})
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			l.held[name] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, name)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
