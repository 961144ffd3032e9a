// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// killTimeout bounds the wait for the end of a killed container: a process in uninterruptible sleep does not end.
const killTimeout = 2 * time.Minute

// Stop sends the stop signal, waits for the timeout, and then kills. An unknown or ended container is not an error.
func (s *Service) Stop(ctx context.Context, id string, timeout time.Duration) error {
	c, err := s.table.Container(id)
	if fault.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return fault.Wrap(s.stop(ctx, c, timeout), "stop container %s", c.ID)
}

func (s *Service) stop(ctx context.Context, ctr *pods.Container, timeout time.Duration) error {
	r := ctr.Record()
	if !r.Running() {
		return nil
	}
	if timeout > 0 {
		err := s.shim.Kill(ctx, ctr.ID, shim.Kill{Signal: int(r.Signal())})
		if err != nil && !errors.Is(err, shim.ErrNotRunning) {
			return err
		}
		t := time.NewTimer(timeout)
		defer t.Stop()
		select {
		case <-ctr.Exited():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return s.Kill(ctx, ctr)
}

// Kill kills a container and waits until it has ended. A container that is not running is not an error.
func (s *Service) Kill(ctx context.Context, ctr *pods.Container) error {
	r := ctr.Record()
	if !r.Running() {
		return nil
	}
	err := s.shim.Kill(ctx, ctr.ID, shim.Kill{Signal: int(unix.SIGKILL)})
	if err != nil && !errors.Is(err, shim.ErrNotRunning) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout,
		errors.New("killed, but not gone after "+killTimeout.String()))
	defer cancel()
	select {
	case <-ctr.Exited():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
