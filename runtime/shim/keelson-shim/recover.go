// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"keelson/lib/record"
	"keelson/runtime/shim"
	"keelson/runtime/shim/process"
	"keelson/runtime/shim/reaper"
)

// read reads every container's state file, adds the container and calls each for it.
func (t *table) read(each func(*container) error) error {
	root := filepath.Join(t.dir, shim.ContainersDir)
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		ctr := newContainer(dir, shim.State{})
		path := filepath.Join(dir, shim.StateName)
		damage, err := record.Read(path, func(body []byte) error {
			var st shim.State
			if err := json.Unmarshal(body, &st); err != nil {
				return err
			}
			if st.ID != entry.Name() {
				return fmt.Errorf("its state belongs to container %q", st.ID)
			}
			ctr.state = st
			return nil
		})
		if damage != nil {
			kept, aerr := record.SetAside(path, filepath.Join(t.dir, "damaged"))
			t.log.Printf("container %s: damaged state restored from its copy, kept as %s: %v", entry.Name(), kept,
				errors.Join(damage, aerr, ctr.save()))
		}
		if err != nil {
			// Its start was interrupted, and no client got a reply.
			t.log.Printf("container %s: incomplete, removed: %v", entry.Name(), err)
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove incomplete container: %w", err)
			}
			continue
		}
		t.byID[ctr.state.ID] = ctr
		if err := each(ctr); err != nil {
			return fmt.Errorf("container %s: %w", ctr.state.ID, err)
		}
	}
	return nil
}

// recover finds the containers of a supervisor that was killed, or that ran before a reboot.
func (s *supervisor) recover() error {
	if err := s.engine.thaw(); err != nil {
		return err
	}
	if err := s.table.read(s.restore); err != nil {
		return err
	}
	return s.engine.sweep(func(id string) bool { return s.table.byID[id] != nil })
}

// restore handles a container that was read from its state file: a running one is adopted, and one that ended without a
// supervisor is recorded as lost.
func (s *supervisor) restore(ctr *container) error {
	if !ctr.state.Running() {
		close(ctr.ended)
		s.engine.destroy(ctr.state.ID)
		close(ctr.cleaned)
		return nil
	}
	if ctr.state.Boot == s.boot {
		if st, err := reaper.StartTime(ctr.state.PID); err == nil && st == ctr.state.StartTime {
			return s.adopt(ctr)
		}
	}
	s.killRemaining(ctr)
	ctr.state.Exited = time.Now()
	ctr.state.ExitCode = process.LostCode
	ctr.state.Lost = true
	s.recordExit(ctr)
	return nil
}

// adopt takes over a running container whose supervisor died. Its FIFOs still hold what it has written since. A
// terminal ended with the supervisor.
func (s *supervisor) adopt(ctr *container) error {
	if ctr.state.Hold {
		return s.watchExit(ctr)
	}
	output, err := s.openStreams(ctr)
	if err != nil {
		return err
	}
	if !ctr.state.Terminal {
		if err := output.OpenFIFOs(ctr.state.Stdin); err != nil {
			return err
		}
	}
	return s.resume(ctr)
}
