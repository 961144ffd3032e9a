// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveContainer removes a container and its root file system; a running one is killed first. The kubelet removes the
// log. An unknown container is not an error.
func (s *Server) RemoveContainer(
	ctx context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := s.container(r.GetContainerId())
	if isNotFound(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.removeContainer(ctx, c); err != nil {
		return nil, wrapf(err, "remove container %s", c.id)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (s *Server) removeContainer(ctx context.Context, ctr *container) error {
	ctr.op.Lock()
	defer ctr.op.Unlock()
	if err := s.killContainer(ctx, ctr); err != nil {
		return err
	}
	if err := s.destroyContainer(ctx, ctr); err != nil {
		return err
	}
	r := ctr.record()
	s.mu.Lock()
	_, known := s.containers[ctr.id]
	delete(s.containers, ctr.id)
	delete(s.names, containerName(r.SandboxID, r.Config.v.GetMetadata()))
	s.mu.Unlock()
	if sb, err := s.sandbox(r.SandboxID); known && err == nil {
		s.sendEvent(sb, ctr.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}
