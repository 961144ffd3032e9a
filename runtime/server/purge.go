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
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// Limits of Purge. Each applies to one step without progress, not to the whole purge: a thousand containers may take
// long.
const (
	purgeReportAfter = 3 * time.Second  // after this time Purge reports what it waits for
	answerLimit      = 10 * time.Second // for an answer of the supervisor
	endLimit         = 15 * time.Second // for the end of the next killed container
	killCgroupLimit  = 5 * time.Second  // for the end of the processes of a killed cgroup
)

// Purge ends all containers and the supervisor, and removes all that they have in the kernel, and all records. It needs
// only the data directory: the supervisor may be dead or hang. Processes that do not end in time are killed through
// their cgroup; it is an error if that does not end them either. Run must not be running. Purge is idempotent. waiting,
// which may be nil, is called with what Purge waits for when that takes long.
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
	errs = append(errs, s.killCgroup(s.cfg.CgroupParent))
	for _, id := range dirNames(s.table.SandboxesDir()) {
		errs = append(errs, s.purgeSandbox(ctx, id))
	}
	for _, id := range dirNames(s.table.ContainersDir()) {
		errs = append(errs, removeAll(filepath.Join(s.table.ContainersDir(), id)))
	}
	for _, id := range dirNames(filepath.Join(s.shimDir(), shim.ContainersDir)) {
		errs = append(errs, removeAll(filepath.Join(s.shimDir(), shim.ContainersDir, id)))
	}
	// The table is empty here, so every snapshot is one without a container.
	errs = append(errs, s.sweepSnapshots(ctx), linux.RemoveCgroup(s.host.Cgroups, s.cfg.CgroupParent))
	errs = append(errs, linux.Unmount(s.path(keyDir)))
	return errors.Join(errs...)
}

func dirNames(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it does not exist
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// purgeSupervisor ends every container and then the supervisor. If the supervisor is dead and has containers on disk, a
// new one is started to end them.
func (s *Server) purgeSupervisor(ctx context.Context, waiting func(string)) error {
	hello, err := s.hello(ctx)
	if errors.Is(err, shim.ErrDown) {
		if len(dirNames(filepath.Join(s.shimDir(), shim.ContainersDir))) == 0 {
			return nil
		}
		if err := s.ensureShim(ctx); err != nil {
			return err
		}
		hello, err = s.hello(ctx)
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
	return waitExit(ask, hello.PID)
}

func (s *Server) hello(ctx context.Context) (shim.Hello, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errors.New("the container supervisor does not answer"))
	defer cancel()
	return s.shim.Hello(ctx)
}

// deleteAll deletes all containers of the supervisor. It fails when none has ended for endLimit.
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
	say := time.AfterFunc(purgeReportAfter, func() { waiting(names()) })
	defer say.Stop()
	giveUp := time.AfterFunc(endLimit, func() {
		stop(fmt.Errorf("%s were killed and did not end in %s", names(), endLimit))
	})
	defer giveUp.Stop()
	var group errgroup.Group
	group.SetLimit(64) // containers that hang must not block the others
	for _, st := range all {
		group.Go(func() error {
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
	if err := group.Wait(); err != nil {
		return fmt.Errorf("end containers: %w", err)
	}
	return nil
}

// killSupervisor kills a supervisor that does not answer. Its containers are found by their cgroups.
func (s *Server) killSupervisor(ctx context.Context) {
	pid, err := s.shim.SupervisorPID(ctx)
	if err != nil {
		return // none is running
	}
	ctx, cancel := context.WithTimeout(ctx, killCgroupLimit)
	defer cancel()
	_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	_ = waitExit(ctx, pid)           // killCgroup reports one that does not end
}

// waitExit waits until a process has ended.
func waitExit(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	for ctx.Err() == nil {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} // descriptors are small
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
	sb := s.table.NewSandbox(pods.SandboxRecord{ID: id})
	var errs []error
	if s.cfg.Network != nil {
		errs = append(errs, s.cfg.Network.Detach(ctx, id))
	}
	kinds := []linux.Namespace{
		linux.NetworkNamespace, linux.IPCNamespace, linux.UTSNamespace, linux.UserNamespace, pods.PIDNamespace,
	}
	errs = append(errs, linux.Release(sb.NS(""), kinds), linux.Unmount(sb.Shm()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeAll(sb.Dir)
}

// killCgroup kills the processes in a cgroup: those that outlived their container's first process or their supervisor.
func (s *Server) killCgroup(cgroup string) error {
	for end := time.Now().Add(killCgroupLimit); ; time.Sleep(10 * time.Millisecond) {
		pids, err := linux.KillCgroup(s.host.Cgroups, cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(end) {
			var left []string
			for _, pid := range pids {
				left = append(left, linux.Describe(pid))
			}
			return fmt.Errorf("processes in cgroup %s were killed and did not end: %s", cgroup,
				strings.Join(left, "; "))
		}
	}
}
