// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
)

// openLog opens a container's log for reading. Whoever can write to the directory of logs, as a pod with a hostPath volume, may have put
// a symbolic link or a FIFO there: neither is opened.
func openLog(path string) (*os.File, error) {
	dir, err := inroot.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenFile(filepath.Base(path), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	return f, errors.Join(err, dir.Close())
}
