// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/shim"
)

// StartContainer runs a created container.
func (s *Server) StartContainer(
	ctx context.Context, r *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	container, err := s.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	sb, err := s.sandbox(container.record().SandboxID)
	if err != nil {
		return nil, err
	}
	sb.op.RLock() // before the container's, as removing a sandbox does
	defer sb.op.RUnlock()
	container.op.Lock()
	defer container.op.Unlock()
	rec := container.record()
	if rec.state() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, failedPrecondition("start container %s: it is in state %s", container.id, rec.state())
	}
	if !sb.record().Ready {
		return nil, failedPrecondition("start container %s: pod sandbox %s is not ready", container.id, sb.id)
	}
	spec, err := s.spec(container)
	if err != nil {
		return nil, wrapf(err, "start container %s", container.id)
	}
	cfg := rec.Config.v
	// The supervisor completes a start even if the caller cancels; so wait, and record it.
	st, err := s.shim.Run(context.WithoutCancel(ctx), container.id, shim.Run{
		Spec:      spec,
		LogPath:   rec.LogPath,
		Stdin:     cfg.GetStdin(),
		StdinOnce: cfg.GetStdinOnce(),
	})
	if err != nil {
		err = shorten(err)
		s.recordStartFailure(container, err)
		return nil, toStatus(err)
	}
	if err := s.recordStart(sb, container, st); err != nil {
		return nil, wrapf(err, "start container %s", container.id)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// maxStartError is the length of a start's error, which may quote what the container is made of.
const maxStartError = 4 << 10

// shorten cuts the text of a long error.
func shorten(err error) error {
	if text := err.Error(); len(text) > maxStartError {
		return errors.New(strings.ToValidUTF8(text[:maxStartError], ""))
	}
	return err
}

// recordStart records the start. If the container has ended by now, recordExit may have ignored the exit, so it is
// recorded here.
func (s *Server) recordStart(sb *sandbox, c *container, st shim.State) error {
	if err := c.update(func(r *containerRecord) { r.Started = st.Started }); err != nil {
		return err
	}
	s.sendEvent(sb, c.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	now, err := s.shim.State(context.Background(), c.id)
	if err == nil && !now.Running() {
		s.recordExit(now)
	}
	return nil
}

// recordStartFailure records a failed start as an exit: the container cannot be started again.
func (s *Server) recordStartFailure(c *container, err error) {
	finished := s.markExited(c, func(r *containerRecord) {
		r.ExitCode = startFailedCode
		r.Reason = "StartError"
		r.Message = err.Error()
	})
	if !finished {
		s.log.Error("container ended while it failed to start", "container", c.id)
	}
}

// startFailedCode is the exit code of a container that could not be started.
const startFailedCode = 128
