// SPDX-License-Identifier: Apache-2.0

package signal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"keelson/lib/signal"
)

// received reports whether a notification is pending, and takes it.
func received(s signal.Signal) bool {
	select {
	case <-s.C():
		return true
	default:
		return false
	}
}

// TestNotify: a notification waits for its receiver, and several of them are one.
func TestNotify(t *testing.T) {
	s := signal.New()
	if received(s) {
		t.Error("a new signal has a notification")
	}
	for range 3 {
		s.Notify()
	}
	if !received(s) {
		t.Error("the notification is lost")
	}
	if received(s) {
		t.Error("three notifications were received twice")
	}
	s.Notify()
	if !received(s) {
		t.Error("the notification after a receive is lost")
	}
}

func TestCopy(t *testing.T) {
	s := signal.New()
	other := s
	other.Notify()
	if !received(s) || s != other {
		t.Error("a copy is another signal")
	}
}

func TestZero(t *testing.T) {
	var s signal.Signal
	s.Notify()
	if received(s) {
		t.Error("the zero signal was received")
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := signal.New()
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		wait := func() { returned <- s.Wait(ctx) }
		go wait() // ends with the notification
		synctest.Wait()
		select {
		case err := <-returned:
			t.Fatalf("Wait returned %v without a notification", err)
		default:
		}
		s.Notify()
		if err := <-returned; err != nil {
			t.Errorf("Wait after a notification: %v", err)
		}
		go wait() // ends with ctx
		synctest.Wait()
		cancel()
		if err := <-returned; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait returned %v, want that ctx was canceled", err)
		}
		s.Notify()
		if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with a pending notification and a canceled ctx returned %v", err)
		}
	})
}

// TestNoChangeIsMissed: a receiver that counts what many goroutines have added sees all of it.
func TestNoChangeIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			goroutines = 8
			each       = 1000
		)
		s := signal.New()
		var mu sync.Mutex
		added := 0
		for range goroutines {
			go func() { // ends with its loop: Notify does not block
				for range each {
					mu.Lock()
					added++
					s.Notify() // with the lock held
					mu.Unlock()
				}
			}()
		}
		// If a change were missed, the last receive would block forever: synctest reports a deadlock.
		for seen := 0; seen < goroutines*each; {
			<-s.C()
			mu.Lock()
			seen = added
			mu.Unlock()
		}
	})
}
