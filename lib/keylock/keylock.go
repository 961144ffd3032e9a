// SPDX-License-Identifier: Apache-2.0

// Package keylock provides one mutex for each name. The runtime and the pod network use it to serialize operations on
// the same sandbox, snapshot or image layer.
package keylock

import (
	"context"
	"sync"
)

// Locks are mutexes by name. The zero value is ready to use. Names that are not locked take no memory.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed and removed when given back
}

// Lock locks a name; the returned function unlocks it.
func (l *Locks) Lock(name string) (unlock func()) {
	unlock, _ = l.LockContext(context.Background(), name) // which does not end
	return unlock
}

// LockContext is Lock, but returns the cause of ctx when that is done first.
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
