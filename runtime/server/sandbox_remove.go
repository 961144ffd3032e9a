// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

// RemovePodSandbox stops the sandbox and removes it with all its containers. An unknown sandbox is not an error.
func (s *Server) RemovePodSandbox(
	ctx context.Context, r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	sb, err := s.sandbox(r.GetPodSandboxId())
	if isNotFound(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	sb.op.Lock()
	defer sb.op.Unlock()
	if err := s.removeSandbox(ctx, sb); err != nil {
		return nil, wrapf(err, "remove pod sandbox %s", sb.id)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// removeSandbox removes a sandbox; the caller holds op.
func (s *Server) removeSandbox(ctx context.Context, sb *sandbox) error {
	if err := s.stopSandbox(ctx, sb); err != nil {
		return err
	}
	for _, c := range s.containersOf(sb.id) {
		if err := s.removeContainer(ctx, c); err != nil {
			return err
		}
	}
	sandboxRecord := sb.record()
	if sandboxRecord.Config.v.GetLinux().GetCgroupParent() == "" {
		if err := linux.RemoveCgroup(s.host.Cgroups, s.podCgroup(&sandboxRecord)); err != nil {
			return err
		}
	}
	if err := removeAll(sb.dir); err != nil {
		return err
	}
	s.mu.Lock()
	_, known := s.sandboxes[sb.id]
	delete(s.sandboxes, sb.id)
	delete(s.names, sandboxName(sandboxRecord.Config.v.GetMetadata()))
	s.mu.Unlock()
	if known {
		s.sendEvent(sb, sb.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}

// podCgroup returns the parent cgroup of the pod's containers: the one that the kubelet named, or one below
// CgroupParent.
func (s *Server) podCgroup(r *sandboxRecord) string {
	if p := r.Config.v.GetLinux().GetCgroupParent(); p != "" {
		return filepath.Join("/", p)
	}
	return filepath.Join(s.cfg.CgroupParent, "pod-"+r.ID)
}
