// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// WatchDir calls changed once when it begins to look, and whenever names in dir may be others than before, until ctx ends. Several
// changes may make one call. changed is called from one goroutine. Only errors that end the watch are returned; that dir was removed or
// moved away is one.
func WatchDir(ctx context.Context, dir string, changed func()) error {
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
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
