// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/shim"
)

// StartContainer runs a created container.
func (s *Server) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := s.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	sb, err := s.sandbox(c.record().SandboxID)
	if err != nil {
		return nil, err
	}
	sb.op.RLock() // before the container's, as removing a sandbox does
	defer sb.op.RUnlock()
	c.op.Lock()
	defer c.op.Unlock()
	rec := c.record()
	if rec.state() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, refused("start container %s: it is in state %s", c.id, rec.state())
	}
	if !sb.record().Ready {
		return nil, refused("start container %s: pod sandbox %s is not ready", c.id, sb.id)
	}
	spec, err := c.spec()
	if err != nil {
		return nil, act(err, "start container %s", c.id)
	}
	cfg := rec.Config.v
	// A start that the caller gave up on would go on in the supervisor, unknown to everyone: it is seen through.
	st, err := s.shim.Run(context.WithoutCancel(ctx), c.id, shim.Run{
		Spec: spec, LogPath: rec.LogPath, Stdin: cfg.GetStdin(), StdinOnce: cfg.GetStdinOnce(),
	})
	if err != nil {
		s.failed(c, err)
		return nil, codedErr(err)
	}
	if err := s.started(sb, c, st); err != nil {
		return nil, act(err, "start container %s", c.id)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// started records the start. The news of a quick end may have come first: then it is recorded here, after the start.
func (s *Server) started(sb *sandbox, c *container, st shim.State) error {
	if err := c.update(func(r *containerRecord) { r.Started = st.Started }); err != nil {
		return err
	}
	s.tell(sb, c.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	now, err := s.shim.State(context.Background(), c.id)
	if err == nil && !now.Running() {
		s.ended(now)
	}
	return nil
}

// failed records that a container could not be started, as an exit: it cannot be started again.
func (s *Server) failed(c *container, err error) {
	finished := s.finish(c, func(r *containerRecord) {
		r.ExitCode, r.Reason, r.Message = startFailed, "StartError", err.Error()
	})
	if !finished {
		s.log.Error("container ended while it failed to start", "container", c.id)
	}
}

// startFailed is the exit code of a container that never ran.
const startFailed = 128
