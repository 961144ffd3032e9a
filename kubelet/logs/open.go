// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
)

// openLog opens a container's log for reading. It opens no symbolic link and no FIFO, since a pod with a hostPath
// volume may have put one into the log directory.
func openLog(path string) (*os.File, error) {
	dir, err := inroot.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenFile(filepath.Base(path), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	return f, errors.Join(err, dir.Close())
}
