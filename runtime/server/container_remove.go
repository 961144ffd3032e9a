// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// RemoveContainer removes a container and its root file system; a running one is killed first. The kubelet removes the
// log. An unknown container is not an error.
func (s *Server) RemoveContainer(
	ctx context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := s.table.Container(r.GetContainerId())
	if fault.IsNotFound(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.removeContainer(ctx, c); err != nil {
		return nil, fault.Wrap(err, "remove container %s", c.ID)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (s *Server) removeContainer(ctx context.Context, ctr *pods.Container) error {
	ctr.Op.Lock()
	defer ctr.Op.Unlock()
	if err := s.killContainer(ctx, ctr); err != nil {
		return err
	}
	if err := s.destroyContainer(ctx, ctr); err != nil {
		return err
	}
	known := s.table.ForgetContainer(ctr)
	if sb, err := s.table.Sandbox(ctr.Record().SandboxID); known && err == nil {
		s.events.Send(sb, ctr.ID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}
