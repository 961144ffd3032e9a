// SPDX-License-Identifier: Apache-2.0

package sandbox

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

// Stop kills the pod's containers and removes its namespaces and network. An unknown sandbox is not an error.
func (s *Service) Stop(ctx context.Context, id string) error {
	sb, err := s.table.Sandbox(id)
	if fault.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	sb.Op.Lock()
	defer sb.Op.Unlock()
	return fault.Wrap(s.stop(ctx, sb), "stop pod sandbox %s", sb.ID)
}

// stop stops a sandbox; the caller holds op. It may be repeated after an error.
func (s *Service) stop(ctx context.Context, sb *pods.Sandbox) error {
	var g errgroup.Group
	for _, c := range s.table.ContainersOf(sb.ID) {
		g.Go(func() error { return s.containers.Kill(ctx, c) })
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
	if err := s.teardown(ctx, sb); err != nil {
		return err
	}
	if was {
		s.events.Send(sb, sb.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// teardown undoes build, except for the directory. An error does not stop it; missing parts are not
// errors.
func (s *Service) teardown(ctx context.Context, sb *pods.Sandbox) error {
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
