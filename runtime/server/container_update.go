// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/oci"
)

// UpdateContainerResources changes the limits of a running container, or of one that is yet to start. Zero fields stay as they are.
func (s *Server) UpdateContainerResources(
	ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := s.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.op.Lock()
	defer c.op.Unlock()
	rec := c.record()
	next, ok := proto.Clone(rec.Resources.v).(*runtimeapi.LinuxContainerResources)
	if !ok {
		return nil, act(errCopy, "update container %s", c.id)
	}
	proto.Merge(next, r.GetLinux()) // a zero is not sent in proto3, so it changes nothing
	switch rec.state() {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		err = s.shim.Update(ctx, c.id, oci.Resources(r.GetLinux(), s.host))
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		err = s.respec(c, next)
	default:
		return nil, refused("update container %s: it is in state %s", c.id, rec.state())
	}
	if err == nil {
		err = c.update(func(r *containerRecord) { r.Resources.v = next })
	}
	if err != nil {
		return nil, act(err, "update container %s", c.id)
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// respec changes the limits that a created container will start with.
func (s *Server) respec(c *container, res *runtimeapi.LinuxContainerResources) error {
	spec, err := c.spec()
	if err != nil {
		return err
	}
	devices := spec.Linux.Resources.Devices
	spec.Linux.Resources = oci.Resources(res, s.host)
	spec.Linux.Resources.Devices = devices
	return writeJSON(filepath.Join(c.dir, specFile), spec)
}

// UpdatePodSandboxResources is told of the pod's limits, which the kubelet has set on the pod's cgroup; there is nothing left to do.
func (s *Server) UpdatePodSandboxResources(
	_ context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := s.sandbox(r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// ReopenContainerLog makes a running container's log go to a new file at the same path, after a rotation.
func (s *Server) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := s.shim.Reopen(ctx, c.id); err != nil {
		return nil, act(err, "reopen log of container %s", c.id)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
