// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// watch calls handle for the inotify events of dir in mask, several at once, until ctx is done or handle returns an
// error. It calls handle once without events when the watch is set up.
func watch(ctx context.Context, dir string, mask uint32, handle func(events []byte) error) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	kernel := os.NewFile(uintptr(fd), "inotify") // a descriptor is not negative
	defer func() { _ = kernel.Close() }()
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = kernel.Close() })
	defer stop()
	buf := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for n := 0; ; {
		if err := handle(buf[:n]); err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		n, err = kernel.Read(buf)
		if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
	}
}

// events yields the mask and name of each inotify event in b.
func events(b []byte) iter.Seq2[uint32, string] {
	return func(yield func(uint32, string) bool) {
		for len(b) >= unix.SizeofInotifyEvent {
			mask := binary.NativeEndian.Uint32(b[4:])
			size := int(binary.NativeEndian.Uint32(b[12:]))
			name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
			b = b[unix.SizeofInotifyEvent+size:]
			if !yield(mask, name) {
				return
			}
		}
	}
}
