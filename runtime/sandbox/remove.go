// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// Remove stops the sandbox and removes it with all its containers. An unknown sandbox is not an error.
func (s *Service) Remove(ctx context.Context, id string) error {
	sb, err := s.table.Sandbox(id)
	if fault.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	sb.Op.Lock()
	defer sb.Op.Unlock()
	return fault.Wrap(s.remove(ctx, sb), "remove pod sandbox %s", sb.ID)
}

// remove removes a sandbox; the caller holds op.
func (s *Service) remove(ctx context.Context, sb *pods.Sandbox) error {
	if err := s.stop(ctx, sb); err != nil {
		return err
	}
	for _, c := range s.table.ContainersOf(sb.ID) {
		if err := s.containers.RemoveOne(ctx, c); err != nil {
			return err
		}
	}
	rec := sb.Record()
	if rec.Config.V.GetLinux().GetCgroupParent() == "" {
		if err := s.cgroups.Remove(s.cgroups.OfPod(&rec)); err != nil {
			return err
		}
	}
	if err := removeAll(sb.Dir); err != nil {
		return err
	}
	if s.table.ForgetSandbox(sb) {
		s.events.Send(sb, sb.ID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}
