// SPDX-License-Identifier: Apache-2.0

package supervisor

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

// Limits of End. Each applies to one step without progress, not to the whole: a thousand containers may take long.
const (
	reportAfter = 3 * time.Second  // after this time End reports what it waits for
	answerLimit = 10 * time.Second // for an answer of the supervisor
	endLimit    = 15 * time.Second // for the end of the next killed container
	killLimit   = 5 * time.Second  // for the end of the killed supervisor
)

// End ends all containers and the supervisor. It needs only the directory: the supervisor may be dead or hang. The
// processes that do not end in time are killed through their cgroup; it is an error if that does not end them either.
// waiting is called with what End waits for when that takes long. End is idempotent.
func (s *Supervisor) End(ctx context.Context, waiting func(what string)) error {
	if err := s.quit(ctx, waiting); err != nil {
		if ctx.Err() != nil {
			return err
		}
		waiting(fmt.Sprintf("processes in cgroup %s, killed because: %v", s.cgroups.Parent(), err))
		s.kill(ctx)
	}
	errs := []error{s.cgroups.Kill(s.cgroups.Parent())}
	for _, id := range s.recorded() {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, shim.ContainersDir, id)))
	}
	return errors.Join(errs...)
}

// recorded returns the names of the containers that the supervisor has on disk.
func (s *Supervisor) recorded() []string {
	entries, err := os.ReadDir(filepath.Join(s.dir, shim.ContainersDir))
	if err != nil {
		return nil // it does not exist
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// quit ends every container and then the supervisor. If the supervisor is dead and has containers on disk, a
// new one is started to end them.
func (s *Supervisor) quit(ctx context.Context, waiting func(string)) error {
	hello, err := s.hello(ctx)
	if errors.Is(err, shim.ErrDown) {
		if len(s.recorded()) == 0 {
			return nil
		}
		if err := s.Ensure(ctx); err != nil {
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
	if err := s.client.Quit(ask); err != nil {
		return err
	}
	return waitExit(ask, hello.PID)
}

func (s *Supervisor) hello(ctx context.Context) (shim.Hello, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errors.New("the container supervisor does not answer"))
	defer cancel()
	return s.client.Hello(ctx)
}

// remaining are the containers that have not ended.
type remaining struct {
	mu     sync.Mutex
	states map[string]shim.State
}

func (r *remaining) ended(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, id)
}

// String names a few of them, with their processes.
func (r *remaining) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for id, st := range r.states {
		if len(out) == 3 {
			out = append(out, "...")
			break
		}
		out = append(out, fmt.Sprintf("%.12s: process %s", id, linux.Describe(st.PID)))
	}
	return fmt.Sprintf("%d containers (%s)", len(r.states), strings.Join(out, "; "))
}

// deleteAll deletes all containers of the supervisor. It fails when none has ended for endLimit.
func (s *Supervisor) deleteAll(ctx context.Context, waiting func(string)) error {
	ask, cancel := context.WithTimeout(ctx, answerLimit)
	all, err := s.client.List(ask)
	cancel()
	if err != nil {
		return err
	}
	left := remaining{states: map[string]shim.State{}}
	for _, st := range all {
		left.states[st.ID] = st
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	say := time.AfterFunc(reportAfter, func() { waiting(left.String()) })
	defer say.Stop()
	giveUp := time.AfterFunc(endLimit, func() {
		stop(fmt.Errorf("%s were killed and did not end in %s", &left, endLimit))
	})
	defer giveUp.Stop()
	var group errgroup.Group
	group.SetLimit(64) // containers that hang must not block the others
	for _, st := range all {
		group.Go(func() error {
			if err := s.client.Delete(ctx, st.ID); err != nil {
				return err
			}
			left.ended(st.ID)
			giveUp.Reset(endLimit) // as long as containers end, one more may
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("end containers: %w", err)
	}
	return nil
}

// kill kills a supervisor that does not answer. Its containers are found by their cgroups.
func (s *Supervisor) kill(ctx context.Context) {
	pid, err := s.client.SupervisorPID(ctx)
	if err != nil {
		return // none is running
	}
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	_ = waitExit(ctx, pid)           // the kill of the cgroup reports one that does not end
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
