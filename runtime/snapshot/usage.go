// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"keelson/runtime/image"
)

// diskUsage adds up the blocks below dir, a hard-linked file once. Files that vanish meanwhile do not matter: the
// container goes on writing.
func diskUsage(dir string, u *image.Usage) error {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if st.Nlink > 1 && !fi.IsDir() {
			k := inode{st.Dev, st.Ino}
			if seen[k] {
				return nil
			}
			seen[k] = true
		}
		u.Bytes += st.Blocks * 512
		u.Inodes++
		return nil
	})
	if err != nil {
		return fmt.Errorf("usage of %s: %w", dir, err)
	}
	return nil
}
