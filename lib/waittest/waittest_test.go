// SPDX-License-Identifier: Apache-2.0

package waittest

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// failing remembers with what a test failed.
type failing struct {
	testing.TB
	with string
}

func (*failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) { f.with = fmt.Sprintf(format, args...) }

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		later := func() bool { return time.Since(began) >= time.Minute }
		Until(t, "a minute has passed", later)
		if took := time.Since(began); took > time.Minute+longestPause {
			t.Errorf("waited %v for what took a minute", took)
		}
		Right(t, "three minutes have passed", func() string {
			if time.Since(began) < 3*time.Minute {
				return "too early"
			}
			return ""
		})
	})
}

func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		f := &failing{TB: t}
		Until(f, "the moon is blue", func() bool { return false })
		if want := "not within 2m0s: the moon is blue"; f.with != want || time.Since(began) < Patience {
			t.Errorf("failed with %q after %v, want %q after %v", f.with, time.Since(began), want, Patience)
		}
		Right(f, "the moon", func() string { return "it is white" })
		if want := "not within 2m0s: the moon: it is white"; f.with != want {
			t.Errorf("failed with %q, want %q", f.with, want)
		}
	})
}
