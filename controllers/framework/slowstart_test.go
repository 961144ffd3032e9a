// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"keelson/controllers/framework"
)

// TestSlowStartEnds: a failure ends a burst and is returned; a terminating namespace ends it, and is no failure.
func TestSlowStartEnds(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		end, want error
	}{{broken, broken}, {framework.ErrTerminating, nil}, {fmt.Errorf("create: %w", framework.ErrTerminating), nil}} {
		var calls atomic.Int32
		done, last, err := framework.SlowStart(1000, 1, func() error {
			if calls.Add(1) > 3 { // batches of 1, 2 and 4
				return c.end
			}
			return nil
		})
		if done != 3 || last != 0 || calls.Load() != 7 || !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%v: %d calls, %d done, last batch %d, error %v", c.end, calls.Load(), done, last, err)
		}
	}
}
