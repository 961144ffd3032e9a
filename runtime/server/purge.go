// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/runtime/shim"
)

// Purge takes everything of this runtime out of the kernel and forgets sandboxes and containers. It works from what is on disk, also
// when the process that served and the supervisor are dead. Run must not be running. It may be repeated.
func (s *Server) Purge(ctx context.Context) error {
	var err error
	if s.host, err = linux.Detect(); err != nil {
		return err
	}
	s.shim = shim.New(s.shimDir())
	if err := s.purgeSupervisor(ctx); err != nil {
		return err
	}
	var errs []error
	for _, id := range list(s.path("sandboxes")) {
		errs = append(errs, s.purgeSandbox(ctx, id))
	}
	for _, id := range list(s.path("containers")) {
		errs = append(errs, removeAll(s.path("containers", id)))
	}
	s.sandboxes, s.containers, s.names = map[string]*sandbox{}, map[string]*container{}, map[string]string{}
	errs = append(errs, s.sweepSnapshots(ctx), s.endStrays(s.cfg.CgroupParent), linux.RemoveCgroup(s.host.Cgroups, s.cfg.CgroupParent))
	return errors.Join(errs...)
}

func list(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // nothing was ever made
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// purgeSupervisor ends every container and then the supervisor. When that one is dead but its containers may not be, another is
// started to find them.
func (s *Server) purgeSupervisor(ctx context.Context) error {
	h, err := s.shim.Hello(ctx)
	if errors.Is(err, shim.ErrDown) {
		if len(list(filepath.Join(s.shimDir(), shim.ContainersDir))) == 0 {
			return nil
		}
		if err := s.open(ctx); err != nil {
			return err
		}
		h, err = s.shim.Hello(ctx)
	}
	if err != nil {
		return err
	}
	all, err := s.shim.List(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(16)
	for _, st := range all {
		g.Go(func() error { return s.shim.Delete(ctx, st.ID) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("end containers: %w", err)
	}
	if err := s.shim.Quit(ctx); err != nil {
		return err
	}
	return waitGone(ctx, h.PID)
}

// waitGone waits for the end of a process.
func waitGone(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	for ctx.Err() == nil {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
		n, err := unix.Poll(p, 100)
		if n == 1 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
	}
	return fmt.Errorf("wait for process %d: %w", pid, context.Cause(ctx))
}

func (s *Server) purgeSandbox(ctx context.Context, id string) error {
	sb := &sandbox{id: id, dir: s.path("sandboxes", id)}
	var errs []error
	if s.cfg.Network != nil {
		errs = append(errs, s.cfg.Network.Detach(ctx, id))
	}
	kinds := []linux.Namespace{linux.NetworkNamespace, linux.IPCNamespace, linux.UTSNamespace, linux.UserNamespace, pidNamespace}
	errs = append(errs, linux.Release(sb.ns(""), kinds), linux.Unmount(sb.shm()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeAll(sb.dir)
}

// endStrays kills what is left in a cgroup: processes that escaped their container's first one.
func (s *Server) endStrays(cgroup string) error {
	for range 50 {
		pids, err := linux.CgroupProcs(s.host.Cgroups, cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // gone already is what we want
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("processes in cgroup %s cannot be killed", cgroup)
}
