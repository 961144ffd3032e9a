// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/runtime/shim"
)

// Limits of Purge. Each is for a step that makes no progress, not for all of it: a thousand containers may take their time.
const (
	purgeSay    = 3 * time.Second  // after which it says what it waits for
	answerLimit = 10 * time.Second // for the supervisor's answer
	endLimit    = 15 * time.Second // for the next killed container's end
	strayLimit  = 5 * time.Second  // for the end of what is killed by its cgroup
)

// Purge takes everything of this runtime out of the kernel and forgets sandboxes and containers. It works from what is on disk, also
// when the process that served and the supervisor are dead, or do not answer: what does not end in time is killed by its cgroup, and the
// rest goes on; only what even that cannot end is an error. Run must not be running. It may be repeated. waiting, which may be nil, hears
// what it waits for when that takes long.
func (s *Server) Purge(ctx context.Context, waiting func(what string)) error {
	if waiting == nil {
		waiting = func(string) {}
	}
	var err error
	if s.host, err = linux.Detect(); err != nil {
		return err
	}
	s.shim = shim.New(s.shimDir())
	if err := s.purgeSupervisor(ctx, waiting); err != nil {
		if ctx.Err() != nil {
			return err
		}
		waiting(fmt.Sprintf("processes in cgroup %s, killed because: %v", s.cfg.CgroupParent, err))
		s.killSupervisor(ctx)
	}
	var errs []error
	errs = append(errs, s.endStrays(s.cfg.CgroupParent))
	for _, id := range list(s.path("sandboxes")) {
		errs = append(errs, s.purgeSandbox(ctx, id))
	}
	for _, id := range list(s.path("containers")) {
		errs = append(errs, removeAll(s.path("containers", id)))
	}
	for _, id := range list(filepath.Join(s.shimDir(), shim.ContainersDir)) {
		errs = append(errs, removeAll(filepath.Join(s.shimDir(), shim.ContainersDir, id)))
	}
	s.sandboxes, s.containers, s.names = map[string]*sandbox{}, map[string]*container{}, map[string]string{}
	errs = append(errs, s.sweepSnapshots(ctx), linux.RemoveCgroup(s.host.Cgroups, s.cfg.CgroupParent))
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
func (s *Server) purgeSupervisor(ctx context.Context, waiting func(string)) error {
	h, err := s.hello(ctx)
	if errors.Is(err, shim.ErrDown) {
		if len(list(filepath.Join(s.shimDir(), shim.ContainersDir))) == 0 {
			return nil
		}
		if err := s.open(ctx); err != nil {
			return err
		}
		h, err = s.hello(ctx)
	}
	if err != nil {
		return err
	}
	if err := s.deleteAll(ctx, waiting); err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := s.shim.Quit(ask); err != nil {
		return err
	}
	return waitGone(ask, h.PID)
}

func (s *Server) hello(ctx context.Context) (shim.Hello, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errors.New("the container supervisor does not answer"))
	defer cancel()
	return s.shim.Hello(ctx)
}

// deleteAll ends all containers. It gives up when none has ended for endLimit.
func (s *Server) deleteAll(ctx context.Context, waiting func(string)) error {
	ask, cancel := context.WithTimeout(ctx, answerLimit)
	all, err := s.shim.List(ask)
	cancel()
	if err != nil {
		return err
	}
	left := map[string]shim.State{}
	for _, st := range all {
		left[st.ID] = st
	}
	var mu sync.Mutex
	names := func() string {
		mu.Lock()
		defer mu.Unlock()
		var out []string
		for id, st := range left {
			if len(out) == 3 {
				out = append(out, "...")
				break
			}
			out = append(out, fmt.Sprintf("%.12s: process %s", id, linux.Describe(st.PID)))
		}
		return fmt.Sprintf("%d containers (%s)", len(left), strings.Join(out, "; "))
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	say := time.AfterFunc(purgeSay, func() { waiting(names()) })
	defer say.Stop()
	giveUp := time.AfterFunc(endLimit, func() { stop(fmt.Errorf("%s were killed and did not end in %s", names(), endLimit)) })
	defer giveUp.Stop()
	var g errgroup.Group
	g.SetLimit(64) // more than are likely to hang
	for _, st := range all {
		g.Go(func() error {
			if err := s.shim.Delete(ctx, st.ID); err != nil {
				return err
			}
			mu.Lock()
			delete(left, st.ID)
			mu.Unlock()
			giveUp.Reset(endLimit)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("end containers: %w", err)
	}
	return nil
}

// killSupervisor ends a supervisor that does not do what it is asked. What it held in its hands is on disk and in cgroups.
func (s *Server) killSupervisor(ctx context.Context) {
	pid, err := s.shim.Listener(ctx)
	if err != nil {
		return // none is running
	}
	ctx, cancel := context.WithTimeout(ctx, strayLimit)
	defer cancel()
	_ = unix.Kill(pid, unix.SIGKILL) // gone already is what we want
	_ = waitGone(ctx, pid)           // and if it does not go, its cgroup says so
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

// endStrays kills what is left in a cgroup: processes that escaped their container's first one, or whose supervisor is gone.
func (s *Server) endStrays(cgroup string) error {
	for end := time.Now().Add(strayLimit); ; time.Sleep(10 * time.Millisecond) {
		pids, err := linux.KillCgroup(s.host.Cgroups, cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(end) {
			var left []string
			for _, pid := range pids {
				left = append(left, linux.Describe(pid))
			}
			return fmt.Errorf("processes in cgroup %s were killed and did not end: %s", cgroup, strings.Join(left, "; "))
		}
	}
}
