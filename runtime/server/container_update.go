// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/oci"
	"keelson/runtime/pods"
)

// UpdateContainerResources changes the limits of a created or running container. Zero fields do not change.
func (s *Server) UpdateContainerResources(
	ctx context.Context, request *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	container, err := s.table.Container(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	container.Op.Lock()
	defer container.Op.Unlock()
	rec := container.Record()
	next, ok := proto.Clone(rec.Resources.V).(*runtimeapi.LinuxContainerResources)
	if !ok {
		return nil, fault.Wrap(fault.ErrCopy, "update container %s", container.ID)
	}
	proto.Merge(next, request.GetLinux()) // Merge skips zero fields
	switch rec.State() {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		err = s.shim.Update(ctx, container.ID, oci.Resources(request.GetLinux(), s.host))
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		err = s.updateSpec(container, next)
	default:
		return nil, fault.FailedPrecondition("update container %s: it is in state %s", container.ID, rec.State())
	}
	if err == nil {
		err = container.Update(func(r *pods.ContainerRecord) { r.Resources.V = next })
	}
	if err != nil {
		return nil, fault.Wrap(err, "update container %s", container.ID)
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// updateSpec changes the limits in the OCI spec of a created container.
func (s *Server) updateSpec(c *pods.Container, res *runtimeapi.LinuxContainerResources) error {
	spec, err := s.specs.Read(c)
	if err != nil {
		return err
	}
	devices := spec.Linux.Resources.Devices
	spec.Linux.Resources = oci.Resources(res, s.host)
	spec.Linux.Resources.Devices = devices
	return s.specs.Write(c, spec)
}

// UpdatePodSandboxResources does nothing: the kubelet has set the pod's limits on the pod's cgroup.
func (s *Server) UpdatePodSandboxResources(
	_ context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := s.table.Sandbox(r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// ReopenContainerLog makes a running container log to a new file at the same path, after a rotation.
func (s *Server) ReopenContainerLog(
	ctx context.Context, r *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.table.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := s.shim.Reopen(ctx, c.ID); err != nil {
		return nil, fault.Wrap(err, "reopen log of container %s", c.ID)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
