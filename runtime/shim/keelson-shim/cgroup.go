// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// load reads a container from libcontainer's state on disk: keeping all of them in memory would take most of the
// supervisor's memory.
func (s *supervisor) load(c *container) (*libcontainer.Container, error) {
	lc, err := libcontainer.Load(s.lcDir(), c.state.ID)
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", c.state.ID, err)
	}
	return lc, nil
}

// destroy removes the container's cgroup and libcontainer's state. It is idempotent.
func (s *supervisor) destroy(ctr *container) {
	if ctr.state.Hold {
		return
	}
	lc, err := s.load(ctr)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return
	}
	if err == nil {
		err = lc.Destroy()
	} else {
		// libcontainer's state is damaged. The runtime, which has the spec, removes the cgroup with the container.
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.lcDir(), ctr.state.ID)))
	}
	if err != nil {
		s.log.Printf("container %s: clean up: %v", ctr.state.ID, err)
	}
}

// killAll signals every process in the container's cgroup.
func (s *supervisor) killAll(ctr *container, sig unix.Signal) error {
	lc, err := s.load(ctr)
	if err != nil {
		return err
	}
	pids, err := lc.Processes()
	if err != nil {
		return fmt.Errorf("signal container %s: %w", ctr.state.ID, err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d of container %s: %w", pid, ctr.state.ID, err)
		}
	}
	return nil
}

// killRemaining kills the processes that outlive the first process of a container with a shared PID namespace. In a
// private one the kernel kills them.
func (s *supervisor) killRemaining(ctr *container) {
	if !ctr.state.SharedPID || ctr.state.Hold {
		return
	}
	for range 200 {
		lc, err := s.load(ctr)
		if err != nil {
			return
		}
		pids, err := lc.Processes()
		if err != nil || len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.log.Printf("container %s: some processes do not end after SIGKILL", ctr.state.ID)
}

// oomKilled reports whether the OOM killer killed a process of the container.
func (s *supervisor) oomKilled(c *container) bool {
	if c.state.Hold {
		return false
	}
	lc, err := s.load(c)
	if err != nil {
		return false
	}
	config := lc.Config()
	m, err := manager.New(config.Cgroups)
	if err != nil {
		return false
	}
	n, err := m.OOMKillCount()
	return err == nil && n > 0
}

// update changes a running container's resources.
func (s *supervisor) update(id string, u shim.Update) error {
	c, err := s.running(id)
	if err != nil {
		return err
	}
	if u.Resources == nil {
		return errors.New("update container: no resources given")
	}
	lc, err := s.load(c)
	if err != nil {
		return err
	}
	config := lc.Config()
	merge(config.Cgroups.Resources, u.Resources)
	// Device rules do not change, and writing them again would deny access for a moment.
	config.Cgroups.SkipDevices = true
	defer func() { config.Cgroups.SkipDevices = false }()
	if err := lc.Set(config); err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	return nil
}
