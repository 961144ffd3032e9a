// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"keelson/cluster/datadir"
	"keelson/kubelet"
	"keelson/lib/linux"
	"keelson/network"
	"keelson/runtime"
)

// cgroupEnd is how long the processes of a killed cgroup may take to end.
const cgroupEnd = 10 * time.Second

// removeByName ends what a node runs and removes what it has in the kernel by the names that follow from the data
// directory's path. It reads nothing there: the disk may be dead, or one on which no runtime can open its files.
func removeByName(ctx context.Context, dir datadir.Dir, purge Purge) error {
	host, err := linux.Detect()
	if err != nil {
		return err
	}
	errs := []error{endCgroup(ctx, host.Cgroups, CgroupParent(dir)), unmountBelow(dir)}
	tmp, err := os.MkdirTemp("", "keelson-down-*")
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	net, err := network.New(network.Config{
		ID:       dir.ID(),
		Dir:      tmp,
		PodCIDRs: []netip.Prefix{anyCIDR},
		Log:      slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = net.Purge(ctx)
	}
	errs = append(errs, err, os.RemoveAll(tmp))
	return errors.Join(append(errs, purge(ctx, dir)...)...)
}

// endCgroup kills the processes of a cgroup, the container supervisor among them, and removes it.
func endCgroup(ctx context.Context, mode linux.CgroupMode, cgroup string) error {
	ctx, cancel := context.WithTimeout(ctx, cgroupEnd)
	defer cancel()
	for {
		pids, err := linux.KillCgroup(mode, cgroup)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return linux.RemoveCgroup(mode, cgroup)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %s was killed and did not end", linux.Describe(pids[0]))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unmountBelow unmounts what is mounted below the data directory, the last mount first.
func unmountBelow(dir datadir.Dir) error {
	mounts, err := linux.Mounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		if strings.HasPrefix(m.Point, string(dir)+"/") {
			errs = append(errs, linux.Unmount(m.Point))
		}
	}
	return errors.Join(errs...)
}

// Purge removes what the roles of a node have in the kernel.
type Purge = func(ctx context.Context, dir datadir.Dir) []error

// Remove removes everything of a real node from the kernel. If nothing is there, that is no error. What the node's
// records do not help to remove, because they cannot be read, is found by name. waiting is called with what takes long.
func Remove(ctx context.Context, dir datadir.Dir, purge Purge, waiting func(string)) error {
	if os.Getuid() != 0 {
		return nil
	}
	err := removeRecorded(ctx, dir, purge, waiting)
	if err == nil || ctx.Err() != nil {
		return err
	}
	byName := removeByName(ctx, dir, purge)
	if errors.Is(err, runtime.ErrUnusable) {
		return byName // no container has run there
	}
	return errors.Join(err, byName)
}

// removeRecorded is Remove by the records in the data directory.
func removeRecorded(ctx context.Context, dir datadir.Dir, purge Purge, waiting func(string)) error {
	foreign := removeExternal(ctx, dir)
	log := slog.New(slog.DiscardHandler)
	net, err := network.New(network.Config{
		ID:       dir.ID(),
		Dir:      dir.Sub("network"),
		PodCIDRs: []netip.Prefix{anyCIDR},
		Log:      log,
	})
	if err != nil {
		return err
	}
	plugins, err := CNIOptions{}.open(dir, nil, log)
	if err != nil {
		return err
	}
	// The runtime need not detach pods from the built-in network one by one: the whole network is removed.
	err = runtime.Down(ctx, runtime.Config{
		Network:      detachOnly{plugins},
		Dir:          dir.Sub("runtime"),
		ID:           dir.ID(),
		CgroupParent: CgroupParent(dir),
		Log:          log,
		Waiting:      waiting,
	})
	return errors.Join(append(purge(ctx, dir), foreign, err, plugins.Purge(ctx), net.Purge(ctx),
		bounded(ctx, "unmount volumes", waiting, func() error { return kubelet.Purge(dir.Sub("kubelet")) }))...)
}

// Time limits of a step of `keelson down` that the kernel may never finish, such as unmounting a file system whose
// server is gone.
const (
	stepNotice = 3 * time.Second
	stepLimit  = 30 * time.Second
)

// bounded runs f, reports when it takes long, and gives up waiting at its limit.
func bounded(ctx context.Context, what string, waiting func(string), f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with the process at the latest
	say := time.AfterFunc(stepNotice, func() { waiting(what) })
	defer say.Stop()
	limit := time.NewTimer(stepLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case <-limit.C:
		return fmt.Errorf("%s: not done in %s", what, stepLimit)
	}
}

// externalStopLimit is how long an external runtime may take to end all pods.
const externalStopLimit = time.Minute

// removeExternal ends this node's pods in an external runtime, if it used one.
func removeExternal(ctx context.Context, dir datadir.Dir) error {
	file := dir.Sub(datadir.EndpointFile)
	endpoint, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rt, err := dialRuntime(string(endpoint))
	if err != nil {
		return fmt.Errorf("this cluster's pods may still run in %s, which does not answer; start it, or delete %s to "+
			"leave them there: %w", endpoint, file, err)
	}
	defer func() { _ = rt.Close() }()
	ctx, cancel := context.WithTimeout(ctx, externalStopLimit)
	defer cancel()
	if err := kubelet.PurgePods(ctx, rt, dir.Sub("kubelet")); err != nil {
		return fmt.Errorf("end the pods in the container runtime at %s: %w", endpoint, err)
	}
	// The built-in runtime deletes its own cgroup. An external runtime leaves ours, which held only its pods.
	host, err := linux.Detect()
	if err != nil {
		return err
	}
	if err := linux.RemoveCgroup(host.Cgroups, CgroupParent(dir)); err != nil {
		return err
	}
	return os.Remove(file)
}
