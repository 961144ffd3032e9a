// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"errors"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// Remove removes a container and its root file system; a running one is killed first. The kubelet removes the log. An
// unknown container is not an error.
func (s *Service) Remove(ctx context.Context, id string) error {
	c, err := s.table.Container(id)
	if fault.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return fault.Wrap(s.RemoveOne(ctx, c), "remove container %s", c.ID)
}

// RemoveOne is Remove for a container of the table.
func (s *Service) RemoveOne(ctx context.Context, ctr *pods.Container) error {
	ctr.Op.Lock()
	defer ctr.Op.Unlock()
	if err := s.Kill(ctx, ctr); err != nil {
		return err
	}
	if err := s.destroy(ctx, ctr); err != nil {
		return err
	}
	known := s.table.ForgetContainer(ctr)
	if sb, err := s.table.Sandbox(ctr.Record().SandboxID); known && err == nil {
		s.events.Send(sb, ctr.ID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}

// destroy undoes build. It is idempotent.
func (s *Service) destroy(ctx context.Context, c *pods.Container) error {
	var errs []error
	errs = append(errs, s.shim.Delete(ctx, c.ID), s.removeCgroup(c), s.snapshots.Remove(ctx, c.ID))
	for _, id := range c.Record().ImageMounts {
		errs = append(errs, s.snapshots.Remove(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeAll(c.Dir)
}

// removeCgroup removes the container's cgroup. The supervisor does that itself, unless it was killed in the middle of a
// start.
func (s *Service) removeCgroup(c *pods.Container) error {
	path := c.Record().CgroupPath
	if filepath.Base(path) != c.ID {
		return nil // it has none, or a damaged record names another cgroup
	}
	if err := s.cgroups.Kill(path); err != nil {
		return err
	}
	return s.cgroups.Remove(path)
}
