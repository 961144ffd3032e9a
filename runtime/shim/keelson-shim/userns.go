// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// wait implements shim.WaitCommand: it waits for the end of standard input.
func wait() {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error means the end, too
}

// chownStreams changes the owner of a process's streams to the root of the container's user namespace. Pipes with an
// unmapped owner cannot be opened by path (/dev/stdout), and libcontainer could not change their owner to the process's
// user.
func chownStreams(config *configs.Config, process *libcontainer.Process) error {
	if !config.Namespaces.Contains(configs.NEWUSER) {
		return nil
	}
	uid, err := config.HostRootUID()
	if err != nil {
		return fmt.Errorf("find the root of the user namespace: %w", err)
	}
	gid, err := config.HostRootGID()
	if err != nil {
		return fmt.Errorf("find the root of the user namespace: %w", err)
	}
	for _, stream := range []any{process.Stdin, process.Stdout, process.Stderr} {
		file, ok := stream.(*os.File)
		if !ok || file == nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fdNumber(file), &st); err != nil {
			return fmt.Errorf("stat standard stream: %w", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue // not a pipe of this container: a device or a file
		}
		if err := unix.Fchown(fdNumber(file), uid, gid); err != nil {
			return fmt.Errorf("change owner of standard stream to %d: %w", uid, err)
		}
	}
	return nil
}
