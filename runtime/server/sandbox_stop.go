// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

// StopPodSandbox kills the pod's containers and takes down its namespaces and network. An unknown sandbox is stopped already.
func (s *Server) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	sb, err := s.sandbox(r.GetPodSandboxId())
	if isNotFound(err) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	sb.op.Lock()
	defer sb.op.Unlock()
	if err := s.stopSandbox(ctx, sb); err != nil {
		return nil, act(err, "stop pod sandbox %s", sb.id)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox runs with op held. It may be repeated after a failure.
func (s *Server) stopSandbox(ctx context.Context, sb *sandbox) error {
	var g errgroup.Group
	for _, c := range s.containersOf(sb.id) {
		g.Go(func() error { return s.killContainer(ctx, c) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	was := sb.record().Ready
	if was {
		// From here on no container may start in it.
		if err := sb.update(func(r *sandboxRecord) { r.Ready = false }); err != nil {
			return err
		}
	}
	if err := s.dismantle(ctx, sb); err != nil {
		return err
	}
	if was {
		s.tell(sb, sb.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// dismantle undoes build, except for the directory. Every part is tried, and may be gone already.
func (s *Server) dismantle(ctx context.Context, sb *sandbox) error {
	var errs []error
	r := sb.record()
	if slices.Contains(r.kinds(), linux.NetworkNamespace) && s.cfg.Network != nil {
		errs = append(errs, s.cfg.Network.Detach(ctx, sb.id))
	}
	if r.options().GetPid() == runtimeapi.NamespaceMode_POD {
		errs = append(errs, s.shim.Delete(ctx, sb.holderID()))
	}
	errs = append(errs, linux.Release(sb.ns(""), append(r.kinds(), pidNamespace, linux.UserNamespace)), linux.Unmount(sb.shm()))
	return errors.Join(errs...)
}

// containersOf returns a sandbox's containers, oldest first.
func (s *Server) containersOf(sandboxID string) []*container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*container
	for _, c := range s.containers {
		if c.record().SandboxID == sandboxID {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *container) int { return a.record().Created.Compare(b.record().Created) })
	return out
}
