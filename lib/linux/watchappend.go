// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WatchAppended calls changed whenever the file at path may have been written to or replaced, until ctx is done, and
// once when the watch is set up. changed is called from one goroutine. Only errors that end the watch are returned.
func WatchAppended(ctx context.Context, path string, changed func() error) error {
	base := filepath.Base(path)
	return watch(ctx, filepath.Dir(path), unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO, func(b []byte) error {
		if len(b) == 0 {
			return changed()
		}
		for what, name := range events(b) {
			if what&unix.IN_Q_OVERFLOW != 0 || name == base {
				return changed()
			}
		}
		return nil
	})
}
