// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A history is done within seconds of the processor's time, and within hours of its own.
const (
	realLimit    = 10 * time.Minute
	virtualLimit = 12 * time.Hour
)

// within runs f in a bubble and ends the process, with what hangs, when it takes too long: neither the bubble's time nor the test's
// would tell whose fault that is. told is called for the history.
func within(t *testing.T, seed uint64, told func() string, f func(t *testing.T)) {
	hangs := func(limit string) {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		fmt.Fprintf(os.Stderr, "seed %d is not done within %s\nhistory:\n  %s\n\n%s\n", seed, limit, told(), stacks)
		os.Exit(1)
	}
	watchdog := time.AfterFunc(realLimit, func() { hangs(realLimit.String()) })
	defer watchdog.Stop()
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
