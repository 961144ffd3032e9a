// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"

	"keelson/lib/inroot"
	"keelson/runtime/image"
)

// diskUsage adds up what is below dir, in which a container goes on writing meanwhile.
func diskUsage(dir string, u *image.Usage) error {
	m, err := inroot.Measure(context.Background(), dir)
	if err != nil {
		return fmt.Errorf("usage of %s: %w", dir, err)
	}
	u.Bytes, u.Inodes = m.Bytes, m.Inodes
	return nil
}

// removeTree removes name in dir, which is ours, with whatever a container wrote there.
func removeTree(dir, name string) error {
	d, err := inroot.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.RemoveAll(name), d.Close())
}
