// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

// keelson-shim is the helper program of Keelson's runtime. It is two things: the init that sets up a container and then
// becomes its program, and the supervisor, one process per node, that owns all containers. The runtime starts it and
// speaks to it by package shim. It is a program of its own because a container's init must start fast, and the
// main program's package initialisation takes longer than all the rest; so it imports as little as it can.
package main

import (
	"fmt"
	"os"

	// libcontainer's manager for device cgroups registers itself; without it every container would be refused.
	_ "github.com/opencontainers/cgroups/devices"
	"github.com/opencontainers/runc/libcontainer"
	// nsenter is C code that runs before Go does: it joins and makes the namespaces of a starting container.
	_ "github.com/opencontainers/runc/libcontainer/nsenter"

	"keelson/runtime/shim"
)

const usage = `keelson-shim supervises the containers of one Keelson node. Keelson starts it; nobody else needs to.
usage: keelson-shim supervise DIR`

func main() {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "init":
		libcontainer.Init() // does not return: it becomes the container's program or exits
	case len(os.Args) > 1 && os.Args[1] == shim.WaitCommand:
		wait()
	case len(os.Args) > 2 && os.Args[1] == "supervise":
		if err := supervise(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintf(os.Stderr, "keelson-shim: %v\n", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
}
