// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestFollowClock: each time that the clock was set counts, but neither the end nor a clock that cannot be followed.
func TestFollowClock(t *testing.T) {
	for what, end := range map[string]error{"it ends": nil, "there is no such timer": errors.New("EINVAL")} {
		ctx, cancel := context.WithCancel(t.Context())
		slept := 0
		set := 0
		followClock(ctx, func(context.Context, time.Time) error {
			if slept++; slept < 3 {
				return nil
			}
			if end == nil {
				cancel()
			}
			return end
		}, func() { set++ }, slog.New(slog.DiscardHandler))
		cancel()
		if set != 2 {
			t.Errorf("%s: called %d times, want 2", what, set)
		}
	}
}
