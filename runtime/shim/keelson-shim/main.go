// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

// keelson-shim is the shim of Keelson's runtime. It runs as the supervisor, one process per node, which is the parent
// of all containers; and as the init of a container, which sets up the container and then executes its program. The
// runtime starts the supervisor and calls it through package shim. It is a separate program because a container's init
// must start fast, and the package initialization of the main program takes longer than the rest of the start. So it
// imports as little as possible.
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

const usage = `keelson-shim supervises the containers of one Keelson node. Keelson starts it; do not start it by hand.
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
