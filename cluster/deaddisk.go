// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/network"
)

// diskFailed reports whether an error says that the disk of the data directory is dead or takes no writes, so that
// nothing can be learned from the directory.
func diskFailed(err error) bool {
	return slices.ContainsFunc([]unix.Errno{
		unix.EIO,
		unix.EROFS,
		unix.ESTALE,
		unix.ENOTCONN,
		unix.ENODEV,
		unix.EUCLEAN,
	}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// openedBy returns the pid of another process that has the file at path open, as an instance has its pid file; 0: none.
func openedBy(proc, path string) int {
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != path {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err == nil && pid != os.Getpid() && alive(pid) {
			return pid
		}
	}
	return 0
}

// cgroupEnd is how long the processes of a killed cgroup may take to end.
const cgroupEnd = 10 * time.Second

// removeByName ends what a node runs and removes what it has in the kernel by the names that follow from the data
// directory's path. It reads nothing there: the disk may be dead, or one on which no runtime can open its files.
func removeByName(ctx context.Context, dir DataDir) error {
	host, err := linux.Detect()
	if err != nil {
		return err
	}
	errs := []error{endCgroup(ctx, host.Cgroups, cgroupParent(dir)), unmountBelow(dir)}
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
	return errors.Join(append(errs, purgeRoles(ctx, dir)...)...)
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
func unmountBelow(dir DataDir) error {
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
