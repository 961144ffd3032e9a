// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDump: a transient error is retried a bounded number of times; any other is returned at once.
func TestDump(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		name  string
		errs  []error // of one call each; the last is that of all further ones
		calls int
		want  error
	}{
		{"whole", []error{nil}, 1, nil},
		{"interrupted", []error{unix.EINTR, unix.EINTR, nil}, 3, nil},
		{"busy", []error{fmt.Errorf("netlink receive: %w", unix.EBUSY), nil}, 2, nil},
		{"always busy", []error{unix.EBUSY}, dumpTries, unix.EBUSY},
		{"another error", []error{other}, 1, other},
	} {
		calls := 0
		got, err := Dump(func() (int, error) {
			calls++
			return calls, c.errs[min(calls, len(c.errs))-1]
		})
		if calls != c.calls || got != calls || !errors.Is(err, c.want) {
			t.Errorf("%s: %d calls, got %d, %v", c.name, calls, got, err)
		}
	}
}
