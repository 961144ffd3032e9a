// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"

	"golang.org/x/sys/unix"
)

// dumpTries bounds the retries of a dump.
const dumpTries = 10

// Dump calls f, which does a netlink dump, and repeats it when the dump was interrupted by a change (EINTR,
// NLM_F_DUMP_INTR) or the kernel was busy (EBUSY).
func Dump[T any](f func() (T, error)) (out T, err error) {
	for range dumpTries {
		if out, err = f(); !PassingNetlink(err) {
			break
		}
	}
	return out, err
}

// PassingNetlink reports whether a netlink error is temporary.
func PassingNetlink(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EBUSY) }
