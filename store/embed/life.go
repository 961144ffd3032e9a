// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"sync"

	"keelson/store"
)

// life counts what uses the engine, so that Close can wait for it.
type life struct {
	calls      sync.RWMutex   // held for reading by every call that touches the engine
	background sync.WaitGroup // counts watchers and the compaction under way
	done       chan struct{}  // closed by end

	ending sync.Mutex
	ended  bool
}

// enter refuses work on a closed store or an ended context, and keeps Close waiting until leave.
func (l *life) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.calls.RLock()
	select {
	case <-l.done:
		l.calls.RUnlock()
		return store.ErrClosed
	default:
		return nil
	}
}

func (l *life) leave() { l.calls.RUnlock() }

// end refuses new work and returns when there is none. It reports whether it is the first call.
func (l *life) end() (first bool) {
	l.ending.Lock()
	first = !l.ended
	if first {
		l.ended = true
		close(l.done)
	}
	l.ending.Unlock()
	if first {
		l.calls.Lock()   // waits for calls under way, which do not wait for a failing disk; later ones see done
		l.calls.Unlock() //nolint:staticcheck // the barrier above
	}
	l.background.Wait()
	return first
}
