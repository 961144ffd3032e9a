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

// StopPodSandbox kills the pod's containers and removes its namespaces and network. An unknown sandbox is not an error.
func (s *Server) StopPodSandbox(
	ctx context.Context, r *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
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
		return nil, wrapf(err, "stop pod sandbox %s", sb.id)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox stops a sandbox; the caller holds op. It may be repeated after an error.
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
		// No container can start in a sandbox that is not ready.
		if err := sb.update(func(r *sandboxRecord) { r.Ready = false }); err != nil {
			return err
		}
	}
	if err := s.teardownSandbox(ctx, sb); err != nil {
		return err
	}
	if was {
		s.sendEvent(sb, sb.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// teardownSandbox undoes buildSandbox, except for the directory. An error does not stop it; missing parts are not
// errors.
func (s *Server) teardownSandbox(ctx context.Context, sb *sandbox) error {
	var errs []error
	r := sb.record()
	if slices.Contains(r.ownNamespaces(), linux.NetworkNamespace) && s.cfg.Network != nil {
		errs = append(errs, s.cfg.Network.Detach(ctx, sb.id))
	}
	if r.options().GetPid() == runtimeapi.NamespaceMode_POD {
		errs = append(errs, s.shim.Delete(ctx, sb.holderID()))
	}
	errs = append(errs, linux.Release(sb.ns(""), append(r.ownNamespaces(), pidNamespace, linux.UserNamespace)),
		linux.Unmount(sb.shm()))
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
