// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"context"
	"errors"
	"io/fs"
	"math"
)

// Usage is the disk usage of a tree.
type Usage struct{ Bytes, Inodes int64 }

// maxLinks bounds the hard-linked files that one walk keeps track of. Further ones count once for each name.
const maxLinks = 250_000

// hidden is the usage of a tree that is too deep to walk: larger than any limit, and small enough for sums.
const hidden = math.MaxInt64 >> 8

// Measure sums up the blocks below dir, of a hard-linked file once, as du(1) does. It follows no link and enters no
// other mount. A tree of more than MaxDepth levels counts as larger than any limit: it cannot be measured, and must not
// hide usage. A missing tree has no usage. Open files without a name are not counted.
func Measure(ctx context.Context, dir string) (Usage, error) {
	root, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, nil
	}
	if err != nil {
		return Usage{}, err
	}
	defer func() { _ = root.Close() }() // nothing was written
	type inode struct{ dev, ino uint64 }
	links := map[inode]bool{}
	var usage Usage
	err = root.Walk(".", WalkOptions{}, func(entry *Entry) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if entry.Info.Nlink > 1 && !entry.Info.IsDir() {
			k := inode{entry.Info.Dev, entry.Info.Ino}
			if links[k] {
				return nil
			}
			if len(links) < maxLinks {
				links[k] = true
			}
		}
		usage.Bytes += entry.Info.Blocks * 512
		usage.Inodes++
		return nil
	})
	if errors.Is(err, ErrTooDeep) {
		usage.Bytes = hidden
		err = nil
	}
	if err != nil {
		return Usage{}, err
	}
	return usage, nil
}
