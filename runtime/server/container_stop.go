// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// killTimeout bounds the wait for the end of a killed container: a process in uninterruptible sleep does not end.
const killTimeout = 2 * time.Minute

// StopContainer sends the stop signal, waits for the timeout, and then kills. An unknown or ended container is not an
// error.
func (s *Server) StopContainer(
	ctx context.Context, r *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	c, err := s.table.Container(r.GetContainerId())
	if fault.IsNotFound(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.stopContainer(ctx, c, time.Duration(r.GetTimeout())*time.Second); err != nil {
		return nil, fault.Wrap(err, "stop container %s", c.ID)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (s *Server) stopContainer(ctx context.Context, ctr *pods.Container, timeout time.Duration) error {
	r := ctr.Record()
	if r.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
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
	return s.killContainer(ctx, ctr)
}

// killContainer kills a container and waits until it has ended. A container that is not running is not an error.
func (s *Server) killContainer(ctx context.Context, ctr *pods.Container) error {
	r := ctr.Record()
	if r.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
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
