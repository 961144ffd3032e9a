// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"

	"golang.org/x/sys/unix"
)

// dumpTries bounds how often a list is asked for that changes all the time.
const dumpTries = 10

// Dump calls f, which lists something by netlink, until the list is whole: one that changed while it was read (EINTR, NLM_F_DUMP_INTR), or
// that the kernel was too busy to read (EBUSY), is read again.
func Dump[T any](f func() (T, error)) (out T, err error) {
	for range dumpTries {
		if out, err = f(); !PassingNetlink(err) {
			break
		}
	}
	return out, err
}

// PassingNetlink tells of an error of netlink that the same request need not meet again.
func PassingNetlink(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EBUSY) }
