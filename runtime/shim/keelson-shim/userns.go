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

// wait is what a process does while its user namespace is made (linux.HoldUserNamespace): it ends when its standard input does.
func wait() {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end too
}

// ownStreams gives a process's streams to the root of the container's user namespace. Pipes that belong to nobody in it could be
// written to, but not opened by name (/dev/stdout), and libcontainer could not give them to the process's user.
func ownStreams(config *configs.Config, p *libcontainer.Process) error {
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
	for _, stream := range []any{p.Stdin, p.Stdout, p.Stderr} {
		f, ok := stream.(*os.File)
		if !ok || f == nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(number(f), &st); err != nil {
			return fmt.Errorf("look at standard stream: %w", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue // a device or a file is not ours to give away
		}
		if err := unix.Fchown(number(f), uid, gid); err != nil {
			return fmt.Errorf("give standard stream to user %d: %w", uid, err)
		}
	}
	return nil
}
