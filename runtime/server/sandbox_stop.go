// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// StopPodSandbox kills the pod's containers and removes its namespaces and network. An unknown sandbox is not an error.
func (s *Server) StopPodSandbox(
	ctx context.Context, r *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	sb, err := s.table.Sandbox(r.GetPodSandboxId())
	if fault.IsNotFound(err) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	sb.Op.Lock()
	defer sb.Op.Unlock()
	if err := s.stopSandbox(ctx, sb); err != nil {
		return nil, fault.Wrap(err, "stop pod sandbox %s", sb.ID)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox stops a sandbox; the caller holds op. It may be repeated after an error.
func (s *Server) stopSandbox(ctx context.Context, sb *pods.Sandbox) error {
	var g errgroup.Group
	for _, c := range s.table.ContainersOf(sb.ID) {
		g.Go(func() error { return s.killContainer(ctx, c) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	was := sb.Record().Ready
	if was {
		// No container can start in a sandbox that is not ready.
		if err := sb.Update(func(r *pods.SandboxRecord) { r.Ready = false }); err != nil {
			return err
		}
	}
	if err := s.teardownSandbox(ctx, sb); err != nil {
		return err
	}
	if was {
		s.events.Send(sb, sb.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// teardownSandbox undoes buildSandbox, except for the directory. An error does not stop it; missing parts are not
// errors.
func (s *Server) teardownSandbox(ctx context.Context, sb *pods.Sandbox) error {
	var errs []error
	r := sb.Record()
	if slices.Contains(r.OwnNamespaces(), linux.NetworkNamespace) {
		errs = append(errs, s.network.Detach(ctx, sb.ID))
	}
	if r.Options().GetPid() == runtimeapi.NamespaceMode_POD {
		errs = append(errs, s.shim.Delete(ctx, sb.HolderID()))
	}
	errs = append(errs, linux.Release(sb.NS(""), append(r.OwnNamespaces(), pods.PIDNamespace, linux.UserNamespace)),
		linux.Unmount(sb.Shm()))
	return errors.Join(errs...)
}
