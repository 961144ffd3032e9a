// SPDX-License-Identifier: Apache-2.0

// Command drivertest runs the CSI driver of csitest in a pod, with its registrar in the same process. Its volumes are
// directories below /volumes. A script makes an image of it; nothing else runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"keelson/kubelet/csi/csitest"
	"keelson/kubelet/rootdir"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: drivertest NAME NODE")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	driver := &csitest.Driver{
		Name:       args[0],
		NodeID:     args[1],
		Dir:        "/volumes",
		Kubelet:    rootdir.Standard,
		Named:      rootdir.Standard,
		Mounts:     true,
		MaxVolumes: 2,
		Topology:   map[string]string{"topology." + args[0] + "/node": args[1]},
		Can: []csiapi.NodeServiceCapability_RPC_Type{
			csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		},
	}
	return driver.Serve(ctx)
}
