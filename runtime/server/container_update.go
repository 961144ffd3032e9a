// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/oci"
)

// UpdateContainerResources changes the limits of a created or running container. Zero fields do not change.
func (s *Server) UpdateContainerResources(
	ctx context.Context, request *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	container, err := s.container(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	container.op.Lock()
	defer container.op.Unlock()
	rec := container.record()
	next, ok := proto.Clone(rec.Resources.v).(*runtimeapi.LinuxContainerResources)
	if !ok {
		return nil, wrapf(errCopy, "update container %s", container.id)
	}
	proto.Merge(next, request.GetLinux()) // Merge skips zero fields
	switch rec.state() {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		err = s.shim.Update(ctx, container.id, oci.Resources(request.GetLinux(), s.host))
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		err = s.updateSpec(container, next)
	default:
		return nil, failedPrecondition("update container %s: it is in state %s", container.id, rec.state())
	}
	if err == nil {
		err = container.update(func(r *containerRecord) { r.Resources.v = next })
	}
	if err != nil {
		return nil, wrapf(err, "update container %s", container.id)
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// updateSpec changes the limits in the OCI spec of a created container.
func (s *Server) updateSpec(c *container, res *runtimeapi.LinuxContainerResources) error {
	spec, err := s.spec(c)
	if err != nil {
		return err
	}
	devices := spec.Linux.Resources.Devices
	spec.Linux.Resources = oci.Resources(res, s.host)
	spec.Linux.Resources.Devices = devices
	return s.writeSpec(c, spec)
}

// UpdatePodSandboxResources does nothing: the kubelet has set the pod's limits on the pod's cgroup.
func (s *Server) UpdatePodSandboxResources(
	_ context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := s.sandbox(r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// ReopenContainerLog makes a running container log to a new file at the same path, after a rotation.
func (s *Server) ReopenContainerLog(
	ctx context.Context, r *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := s.shim.Reopen(ctx, c.id); err != nil {
		return nil, wrapf(err, "reopen log of container %s", c.id)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
