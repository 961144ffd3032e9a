// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A history is done within seconds of the processor's time, and within hours of its own. A machine with other work to
// do may take long: the clock on the wall says only that a history waits for something that never comes.
const (
	cpuLimit     = 5 * time.Minute // as many histories at once as there are processors have each as much
	realLimit    = time.Hour
	virtualLimit = 12 * time.Hour
)

// cpuTime is what this process has had of the processors.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// within runs f in a bubble and ends the process, with what hangs, when it takes too long: neither the bubble's time
// nor the test's would show the cause. events is called for the history.
func within(t *testing.T, seed uint64, events func() string, f func(t *testing.T)) {
	hangs := func(limit string) {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		fmt.Fprintf(os.Stderr, "seed %d is not done within %s\nhistory:\n  %s\n%s\n\n%s\n", seed, limit, events(),
			again(seed), stacks)
		os.Exit(1)
	}
	done := make(chan struct{})
	defer close(done)
	go func() { // ends with the test
		begun := time.Now()
		used := cpuTime()
		limit := cpuLimit * time.Duration(runtime.GOMAXPROCS(0))
		for tick := time.NewTicker(10 * time.Second); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			switch {
			case cpuTime()-used > limit:
				hangs(limit.String() + " of the processor's time")
			case time.Since(begun) > realLimit:
				hangs(realLimit.String())
			}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { // ends with the test
			select {
			case <-time.After(virtualLimit):
				hangs(virtualLimit.String() + " of virtual time")
			case <-ctx.Done():
			}
		}()
		f(t)
	})
}
