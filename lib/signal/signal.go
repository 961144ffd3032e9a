// SPDX-License-Identifier: Apache-2.0

// Package signal is the wake-up call between a goroutine that changes some state and the one that acts on it. All
// rooms use it. It carries no data and knows nothing about the state.
//
// Invariants:
//  1. Notify never blocks and may be called from any goroutine, also with locks held.
//  2. No change is missed: after a Notify, at least one receive is still to come. The receiver reads the state after it
//     has received, so it sees everything that changed before that Notify.
//  3. Many Notify calls before a receive are one. The receiver looks at the whole state, never at single events.
//  4. Each receive wakes one goroutine. A signal has one receiver; two receivers need two signals.
//
// The state has its own lock or is atomic: a Notify that finds another one pending is no memory barrier.
package signal

import "context"

// Signal is one wake-up call. Copies of a Signal are the same signal. The zero Signal is never received.
type Signal struct {
	pending chan struct{} // capacity 1: holds an item from a Notify until the next receive
}

// New returns a signal without a pending notification.
func New() Signal { return Signal{pending: make(chan struct{}, 1)} }

// Notify wakes up the receiver, now or when it next receives.
func (s Signal) Notify() {
	select {
	case s.pending <- struct{}{}:
	default: // the receiver has yet to look, and will see this change too
	}
}

// C returns the channel to receive from in a select. It is never closed.
func (s Signal) C() <-chan struct{} { return s.pending }

// Wait receives once. After ctx is done it returns the reason, also when a notification is pending.
func (s Signal) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.pending:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
