// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// WatchDir calls changed once when the watch is set up, and whenever the names in dir may have changed, until ctx is
// done. Several changes may cause one call. changed is called from one goroutine. Only errors that end the watch are
// returned, such as the removal of dir.
func WatchDir(ctx context.Context, dir string, changed func()) error {
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF |
		unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	return watch(ctx, dir, mask, func(b []byte) error {
		for what := range events(b) {
			if what&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0 {
				return errors.New("the directory was removed")
			}
		}
		changed()
		return nil
	})
}
