// SPDX-License-Identifier: Apache-2.0

// Package parent ends a process with the process that started it. The programs of envtest call it: a test harness that
// is killed cannot stop them, and must leave nothing behind.
package parent

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Follow returns a context that ends with ctx, or when the process that started this one has ended; done releases what
// it holds. On an error, which a kernel before Linux 5.3 answers, nothing is followed.
func Follow(ctx context.Context) (_ context.Context, done func(), err error) {
	return follow(ctx, os.Getppid(), os.Getppid)
}

// follow is Follow of the process pid; current returns the present parent.
func follow(ctx context.Context, pid int, current func() int) (context.Context, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH): // it has ended
		cancel()
		return ctx, cancel, nil
	case err != nil:
		cancel()
		return nil, nil, fmt.Errorf("follow the parent process: %w", err)
	case current() != pid: // it ended before fd was open, which may be another process
		cancel()
		return ctx, cancel, unix.Close(fd)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	conn, err := file.SyscallConn()
	if err != nil {
		cancel()
		return nil, nil, errors.Join(fmt.Errorf("follow the parent process: %w", err), file.Close())
	}
	go func() { // ends with the parent, or with file
		if err := conn.Read(hasEnded); err == nil {
			cancel()
		}
	}()
	return ctx, func() {
		cancel()
		_ = file.Close()
	}, nil
}

// hasEnded reports whether the process of a pidfd has ended. Without it the caller waits until the descriptor is
// readable.
func hasEnded(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
