// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/oci"
	"keelson/runtime/pods"
)

// Update changes the limits of a created or running container. Zero fields do not change.
func (s *Service) Update(ctx context.Context, id string, limits *runtimeapi.LinuxContainerResources) error {
	container, err := s.table.Container(id)
	if err != nil {
		return err
	}
	container.Op.Lock()
	defer container.Op.Unlock()
	rec := container.Record()
	next, ok := proto.Clone(rec.Resources.V).(*runtimeapi.LinuxContainerResources)
	if !ok {
		return fault.Wrap(fault.ErrCopy, "update container %s", container.ID)
	}
	proto.Merge(next, limits) // Merge skips zero fields
	switch rec.State() {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		err = s.shim.Update(ctx, container.ID, oci.Resources(limits, s.host))
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		err = s.updateSpec(container, next)
	default:
		return fault.FailedPrecondition("update container %s: it is in state %s", container.ID, rec.State())
	}
	if err == nil {
		err = container.Update(func(r *pods.ContainerRecord) { r.Resources.V = next })
	}
	return fault.Wrap(err, "update container %s", container.ID)
}

// updateSpec changes the limits in the OCI spec of a created container.
func (s *Service) updateSpec(c *pods.Container, res *runtimeapi.LinuxContainerResources) error {
	spec, err := s.specs.Read(c)
	if err != nil {
		return err
	}
	devices := spec.Linux.Resources.Devices
	spec.Linux.Resources = oci.Resources(res, s.host)
	spec.Linux.Resources.Devices = devices
	return s.specs.Write(c, spec)
}

// ReopenLog makes a running container log to a new file at the same path, after a rotation.
func (s *Service) ReopenLog(ctx context.Context, id string) error {
	c, err := s.table.Container(id)
	if err != nil {
		return err
	}
	return fault.Wrap(s.shim.Reopen(ctx, c.ID), "reopen log of container %s", c.ID)
}
