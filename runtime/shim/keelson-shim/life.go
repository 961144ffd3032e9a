// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/reaper"
)

// discard removes a container whose start failed.
func (s *supervisor) discard(c *container) {
	if c.io != nil {
		c.io.Close()
	}
	if err := s.table.remove(c); err != nil {
		s.log.Printf("container %s: %v", c.state.ID, err)
	}
}

// recordStart saves the state of a started container and watches for its exit.
func (s *supervisor) recordStart(ctr *container) error {
	st, err := reaper.StartTime(ctr.state.PID)
	if err != nil {
		return fmt.Errorf("read start time: %w", err)
	}
	ctr.mu.Lock()
	ctr.state.StartTime = st
	ctr.starting = false
	ctr.mu.Unlock()
	if err := ctr.save(); err != nil {
		return err
	}
	return s.watchExit(ctr)
}

// watchExit watches for the exit of a container whose state is saved.
func (s *supervisor) watchExit(c *container) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	c.first, err = s.watcher.Watch(c.state.PID, func() {
		go s.handleExit(c) // ends when the last output is logged and the cgroup removed
	})
	return err
}

func (s *supervisor) kill(id string, k shim.Kill) error {
	c, err := s.table.running(id)
	if err != nil {
		return err
	}
	if k.All || k.Signal == int(unix.SIGKILL) && c.snapshot().SharedPID {
		return s.engine.killAll(id, unix.Signal(k.Signal))
	}
	return c.signal(unix.Signal(k.Signal))
}

// handleExit reaps an ended container, logs its last output, records and reports the exit, and removes the cgroup. It
// holds gate, so an upgrade does not interrupt it; if an upgrade comes first, the new program reaps the
// container.
func (s *supervisor) handleExit(ctr *container) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	ctr.waitEntering()
	ctr.mu.Lock()
	exit := ctr.first.Reap()
	ctr.first = nil
	ctr.mu.Unlock()
	s.killRemaining(ctr)
	oom := s.engine.oomKilled(ctr.state.ID)
	if ctr.io != nil {
		ctr.io.Close()
	}
	ctr.mu.Lock()
	ctr.state.Exited = time.Now()
	ctr.state.ExitCode = exit.Code
	ctr.state.Lost = exit.Lost
	ctr.state.OOMKilled = oom && exit.Code != 0
	ctr.mu.Unlock()
	s.recordExit(ctr)
}

// recordExit saves and reports the exit in state, and removes what the container leaves in the kernel.
func (s *supervisor) recordExit(c *container) {
	if err := c.save(); err != nil {
		s.log.Printf("container %s: record its exit: %v", c.state.ID, err)
	}
	s.feed.publish(c.snapshot())
	close(c.ended)
	s.engine.destroy(c.state.ID)
	close(c.cleaned)
}

// remove kills a running container, waits for its end and removes it. It fails when the client disconnects first. An
// unknown container is not an error.
func (s *supervisor) remove(id string, gone <-chan struct{}) error {
	container, err := s.table.find(id)
	if errors.Is(err, shim.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if st := container.snapshot(); st.Running() {
		if err := s.kill(id, shim.Kill{Signal: int(unix.SIGKILL)}); err != nil && !errors.Is(err, shim.ErrNotRunning) {
			return err
		}
	}
	s.gate.RUnlock() // so that this wait does not block an upgrade
	ended := true
	select {
	case <-container.cleaned:
	case <-gone:
		ended = false
	}
	s.gate.RLock()
	if !ended {
		return fmt.Errorf("remove container %s: it was killed and has not ended", id)
	}
	return s.table.remove(container)
}

// killRemaining kills what outlives the first process, where the kernel does not.
func (s *supervisor) killRemaining(ctr *container) {
	if ctr.state.SharedPID && !ctr.state.Hold {
		s.engine.killRemaining(ctr.state.ID)
	}
}

func (s *supervisor) update(id string, u shim.Update) error {
	if _, err := s.table.running(id); err != nil {
		return err
	}
	if u.Resources == nil {
		return errors.New("update container: no resources given")
	}
	return s.engine.update(id, u.Resources)
}

func (s *supervisor) reopen(id string) error {
	container, err := s.table.running(id)
	if err != nil || container.io == nil {
		return err
	}
	if err := container.io.Reopen(); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return nil
}
