// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"keelson/cluster/nodehost"
	"keelson/cri"
	"keelson/event"
	"keelson/lib/option"
	"keelson/lib/run"
)

func runtimeRows(r *RoleConfig) []option.Row {
	return []option.Row{
		option.New(&r.Listen, "listen", "", "serve CRI at `unix://PATH`, for root alone"),
		mirrorRow(r),
	}
}

// runRuntime runs the built-in container runtime with its pod network, and serves CRI v1 on a Unix socket, for crictl,
// critest and other kubelets. Containers outlive it; `keelson down` ends them.
func runRuntime(ctx context.Context, role RoleConfig) error {
	socket, ok := strings.CutPrefix(role.Listen, "unix://")
	if !ok || !filepath.IsAbs(socket) {
		return fmt.Errorf("--listen %q is not of the form unix:///PATH", role.Listen)
	}
	cfg := Default()
	cfg.DataDir = role.DataDir
	cfg.CNI = role.CNI
	if err := cfg.CNI.Validate(); err != nil {
		return err
	}
	var err error
	if cfg.Mirrors, err = role.mirrors(); err != nil {
		return err
	}
	cfg.ImageHelper = role.ImageHelper
	dir, err := cfg.DataDir.Prepare()
	if err != nil {
		return err
	}
	lock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	reserve := dir.NodeReserve(role.log())
	var podRange io.Closer
	if cfg.PodCIDRs, podRange, err = nodehost.ChoosePodCIDRs(cfg.PodCIDRs, dir, cfg.Controllers.PodRanges); err != nil {
		return err
	}
	defer func() { _ = podRange.Close() }()
	of := cfg.containerRuntime(dir)
	of.StreamTCP = true
	of.Marks = event.NewRecorder()
	of.Log = role.log()
	rt, pods, _, err := nodehost.Builtin(of)
	if err != nil {
		return err
	}
	g := &run.Group{}
	g.Add("node", run.Together(nil, run.Part{Name: "network", Run: pods.Run}, run.Part{
		Name: "container runtime",
		Run:  rt.Run,
	}))
	for _, part := range reserve {
		g.Add(part.Name, part.Run)
	}
	g.Add("cri", func(ctx context.Context, ready func()) error { return cri.Serve(ctx, rt, socket, ready) })
	return g.Run(ctx, role.Ready)
}
