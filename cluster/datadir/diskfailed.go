// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// DiskFailed reports whether an error says that the disk of the data directory is dead or takes no writes, so that
// nothing can be learned from the directory.
func DiskFailed(err error) bool {
	return slices.ContainsFunc([]unix.Errno{
		unix.EIO,
		unix.EROFS,
		unix.ESTALE,
		unix.ENOTCONN,
		unix.ENODEV,
		unix.EUCLEAN,
	}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// openedBy returns the pid of another process that has the file at path open, as an instance has its pid file; 0: none.
func openedBy(path string) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != path {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err == nil && pid != os.Getpid() && Alive(pid) {
			return pid
		}
	}
	return 0
}
