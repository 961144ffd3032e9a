// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// load reads the records of sandboxes and containers, compares them with the supervisor's containers, and removes what
// is incomplete or unknown.
func (s *Server) load(ctx context.Context, all []shim.State) error {
	if err := s.loadSandboxes(ctx); err != nil {
		return err
	}
	states := map[string]shim.State{}
	for _, st := range all {
		states[st.ID] = st
	}
	if err := s.loadContainers(ctx, states); err != nil {
		return err
	}
	for _, st := range all {
		if s.table.Owns(st.ID) {
			continue
		}
		s.log.Info("removing a container without a record", "container", st.ID)
		if err := s.shim.Delete(ctx, st.ID); err != nil {
			return fmt.Errorf("remove unknown container: %w", err)
		}
	}
	for _, st := range all {
		if st.Hold && !st.Running() {
			s.pidHolderExited(st)
		}
	}
	return errors.Join(s.sweepSnapshots(ctx), s.network.Sweep(ctx, s.table.HasSandbox), s.cgroups.Sweep(s.knows))
}

// loadSandboxes reads the records. A sandbox becomes not ready if its namespaces are gone, as after a reboot.
func (s *Server) loadSandboxes(ctx context.Context) error {
	err := s.table.LoadSandboxes(func(sb *pods.Sandbox) error {
		// Of an empty record teardownSandbox removes every part that a sandbox can have.
		if err := s.teardownSandbox(ctx, sb); err != nil {
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

func (s *Server) loadContainers(ctx context.Context, states map[string]shim.State) error {
	return s.table.LoadContainers(
		func(c *pods.Container) error { return s.destroyContainer(ctx, c) },
		func(c *pods.Container) {
			if err := s.specs.SealOld(c); err != nil {
				s.log.Error("spec of an earlier version is not encrypted", "container", c.ID, "error", err)
			}
			s.adoptContainer(c, states)
		})
}

// adoptContainer updates a container's record from the supervisor's state.
func (s *Server) adoptContainer(c *pods.Container, states map[string]shim.State) {
	rec := c.Record()
	if rec.State() == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	st, known := states[c.ID]
	switch {
	case known && rec.Started.IsZero():
		// The runtime died between the start and recording it.
		if err := c.Update(func(r *pods.ContainerRecord) { r.Started = st.Started }); err != nil {
			s.log.Error("record container start", "container", c.ID, "error", err)
		}
	case !known && !rec.Started.IsZero():
		s.recordLost(c)
		return
	}
	if known && !st.Running() {
		if err := c.Update(func(r *pods.ContainerRecord) { setExit(r, st) }); err != nil {
			s.log.Error("record container exit", "container", c.ID, "error", err)
		}
	}
}

// sweepSnapshots removes snapshots without a container.
func (s *Server) sweepSnapshots(ctx context.Context) error {
	ids, err := s.cfg.Snapshots.List()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, c := range s.table.Containers("", "", nil) {
		used[c.ID] = true
		for _, m := range c.Record().ImageMounts {
			used[m] = true
		}
	}
	var errs []error
	for _, id := range ids {
		if !used[id] {
			errs = append(errs, s.cfg.Snapshots.Remove(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// knows reports whether there is a sandbox or container with the id.
func (s *Server) knows(id string) bool { return s.table.HasSandbox(id) || s.table.Owns(id) }
