// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"

	"keelson/lib/inroot"
	"keelson/runtime/image"
)

// diskUsage sums up the tree at dir, while a container may write to it.
func diskUsage(dir string, u *image.Usage) error {
	m, err := inroot.Measure(context.Background(), dir)
	if err != nil {
		return fmt.Errorf("usage of %s: %w", dir, err)
	}
	u.Bytes = m.Bytes
	u.Inodes = m.Inodes
	return nil
}

// removeTree removes the tree name in dir. Containers may have written to the tree, but not to dir.
func removeTree(dir, name string) error {
	d, err := inroot.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.RemoveAll(name), d.Close())
}
