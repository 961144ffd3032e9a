// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"errors"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// Load reads the records of containers, compares them with the supervisor's states, and removes what is incomplete.
func (s *Service) Load(ctx context.Context, states map[string]shim.State) error {
	return s.table.LoadContainers(
		func(c *pods.Container) error { return s.destroy(ctx, c) },
		func(c *pods.Container) {
			if err := s.specs.SealOld(c); err != nil {
				s.log.Error("spec of an earlier version is not encrypted", "container", c.ID, "error", err)
			}
			s.adopt(c, states)
		})
}

// adopt updates a container's record from the supervisor's state.
func (s *Service) adopt(c *pods.Container, states map[string]shim.State) {
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

// SweepSnapshots removes snapshots without a container.
func (s *Service) SweepSnapshots(ctx context.Context) error {
	ids, err := s.snapshots.List()
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
			errs = append(errs, s.snapshots.Remove(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// Purge removes the records of all containers, which must have ended, and their root file systems. None may be loaded:
// a snapshot without a container in the table is removed.
func (s *Service) Purge(ctx context.Context) error {
	var errs []error
	for _, id := range s.table.RecordedContainers() {
		errs = append(errs, removeAll(filepath.Join(s.table.ContainersDir(), id)))
	}
	return errors.Join(append(errs, s.SweepSnapshots(ctx))...)
}
