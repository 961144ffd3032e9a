// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// Load reads the records of sandboxes and removes what is incomplete. A sandbox becomes not ready if its namespaces are
// gone, as after a reboot.
func (s *Service) Load(ctx context.Context) error {
	err := s.table.LoadSandboxes(func(sb *pods.Sandbox) error {
		// Of an empty record teardown removes every part that a sandbox can have.
		if err := s.teardown(ctx, sb); err != nil {
			return err
		}
		return removeAll(sb.Dir)
	})
	if err != nil {
		return err
	}
	for _, sb := range s.table.Sandboxes("", nil) {
		rec := sb.Record()
		lost := func(k linux.Namespace) bool { return !linux.IsNamespace(sb.NS(k)) }
		if !rec.Ready || !slices.ContainsFunc(rec.HeldNamespaces(), lost) {
			continue
		}
		if err := sb.Update(func(r *pods.SandboxRecord) { r.Ready = false }); err != nil {
			s.log.Error("record lost pod sandbox", "sandbox", sb.ID, "error", err)
		}
	}
	return nil
}

// HolderExited marks a sandbox not ready when its shared PID namespace has ended: no process can run in it any more.
func (s *Service) HolderExited(st shim.State) {
	found := s.table.SandboxOfHolder(st.ID)
	if found == nil || !found.Record().Ready {
		return
	}
	if err := found.Update(func(r *pods.SandboxRecord) { r.Ready = false }); err != nil {
		s.log.Error("record lost pod sandbox", "sandbox", found.ID, "error", err)
	}
	s.events.Send(found, found.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// Purge removes what the recorded sandboxes have in the kernel, and their records. No container may run, and none of
// the records need be readable.
func (s *Service) Purge(ctx context.Context) error {
	var errs []error
	for _, id := range s.table.RecordedSandboxes() {
		errs = append(errs, s.purge(ctx, id))
	}
	return errors.Join(errs...)
}

func (s *Service) purge(ctx context.Context, id string) error {
	sb := s.table.NewSandbox(pods.SandboxRecord{ID: id})
	kinds := []linux.Namespace{
		linux.NetworkNamespace, linux.IPCNamespace, linux.UTSNamespace, linux.UserNamespace, pods.PIDNamespace,
	}
	err := errors.Join(s.network.Detach(ctx, id), linux.Release(sb.NS(""), kinds), linux.Unmount(sb.Shm()))
	if err != nil {
		return err
	}
	return removeAll(sb.Dir)
}
