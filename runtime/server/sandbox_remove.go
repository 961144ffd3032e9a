// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// RemovePodSandbox stops the sandbox and removes it with all its containers. An unknown sandbox is not an error.
func (s *Server) RemovePodSandbox(
	ctx context.Context, r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	sb, err := s.table.Sandbox(r.GetPodSandboxId())
	if fault.IsNotFound(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	sb.Op.Lock()
	defer sb.Op.Unlock()
	if err := s.removeSandbox(ctx, sb); err != nil {
		return nil, fault.Wrap(err, "remove pod sandbox %s", sb.ID)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// removeSandbox removes a sandbox; the caller holds op.
func (s *Server) removeSandbox(ctx context.Context, sb *pods.Sandbox) error {
	if err := s.stopSandbox(ctx, sb); err != nil {
		return err
	}
	for _, c := range s.table.ContainersOf(sb.ID) {
		if err := s.removeContainer(ctx, c); err != nil {
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
