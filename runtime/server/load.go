// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"

	"keelson/runtime/shim"
)

// load reads the records of sandboxes and containers, compares them with the supervisor's containers, and removes what
// is incomplete or unknown.
func (s *Server) load(ctx context.Context, all []shim.State) error {
	if err := s.sandboxes.Load(ctx); err != nil {
		return err
	}
	states := map[string]shim.State{}
	for _, st := range all {
		states[st.ID] = st
	}
	if err := s.containers.Load(ctx, states); err != nil {
		return err
	}
	for _, st := range all {
		if s.table.Owns(st.ID) {
			continue
		}
		s.log.Info("removing a container without a record", "container", st.ID)
		if err := s.supervisor.Client().Delete(ctx, st.ID); err != nil {
			return fmt.Errorf("remove unknown container: %w", err)
		}
	}
	for _, st := range all {
		if st.Hold && !st.Running() {
			s.sandboxes.HolderExited(st)
		}
	}
	return errors.Join(
		s.containers.SweepSnapshots(ctx), s.network.Sweep(ctx, s.table.HasSandbox), s.cgroups.Sweep(s.knows))
}

// knows reports whether there is a sandbox or container with the id.
func (s *Server) knows(id string) bool { return s.table.HasSandbox(id) || s.table.Owns(id) }

// exited records what the supervisor reports of a container or holder that has ended.
func (s *Server) exited(st shim.State) {
	if st.Hold {
		s.sandboxes.HolderExited(st)
	} else {
		s.containers.RecordExit(st)
	}
}

// reconcile records the exits that were missed between two subscriptions.
func (s *Server) reconcile(all []shim.State) {
	for _, st := range all {
		if !st.Running() {
			s.exited(st)
		}
	}
	s.containers.Reconcile(all)
}
