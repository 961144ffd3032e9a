// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"log/slog"
	"time"
)

// followClock calls set when the wall clock was set, until ctx is done. Tokens of pods may have expired then, while the
// timers of their renewals, which do not run on a suspended machine, wait for longer. sleep is linux.SleepUntil.
func followClock(
	ctx context.Context, sleep func(context.Context, time.Time) error, set func(), log *slog.Logger,
) {
	for {
		err := sleep(ctx, time.Now().AddDate(1, 0, 0))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.Warn("tokens of pods are not renewed when the clock is set", "err", err)
			return
		}
		set()
	}
}
