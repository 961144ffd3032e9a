// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SleepUntil returns when the wall clock shows end or was set, or when ctx is done. Other than a timer of Go it does
// not stop while the machine is suspended, and it notices that the clock jumps.
func SleepUntil(ctx context.Context, end time.Time) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make a timer of the wall clock: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timer") // a descriptor is not negative
	defer func() { _ = timer.Close() }()
	at := unix.NsecToTimespec(max(end.UnixNano(), 1)) // 0 would switch the timer off
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET,
		&unix.ItimerSpec{Value: at}, nil); err != nil {
		return fmt.Errorf("set a timer of the wall clock: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = timer.Close() })
	defer stop()
	_, err = timer.Read(make([]byte, 8))
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, unix.ECANCELED): // ECANCELED: the clock was set
		return nil
	}
	return fmt.Errorf("wait for a timer of the wall clock: %w", err)
}
