// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"testing"
	"time"

	"keelson/lib/linux"
)

// TestSleepUntil: it returns at a time of the wall clock, at once for a past one, and when its context is done.
func TestSleepUntil(t *testing.T) {
	begin := time.Now()
	if err := linux.SleepUntil(t.Context(), begin.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := linux.SleepUntil(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	end := begin.Add(20 * time.Millisecond)
	if err := linux.SleepUntil(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	if now := time.Now(); now.Before(end) {
		t.Errorf("returned %s too early", end.Sub(now))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- linux.SleepUntil(ctx, begin.Add(24*time.Hour)) }() // ends with ctx
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
