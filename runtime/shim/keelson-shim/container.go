// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/record"
	"keelson/runtime/shim"
	"keelson/runtime/shim/reaper"
)

// container is one container. What must survive the supervisor is in state, which is also in the state file.
type container struct {
	dir   string
	pidfd int // valid while it runs
	io    *stdio
	// ended is closed when the exit is recorded and reported; cleaned when the cgroup is removed, too.
	ended       chan struct{}
	cleaned     chan struct{}
	openingNull atomic.Bool // a call of nullDevice is in progress
	// entering is held for reading while a process starts in the container. Its first process is not reaped then, so
	// its pid is not reused.
	entering sync.RWMutex

	mu       sync.Mutex
	starting bool // state is not complete yet
	state    shim.State
}

func (c *container) snapshot() shim.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// save writes the state file and its copy (see lib/record), each atomically.
func (c *container) save() error {
	body, err := json.Marshal(c.snapshot())
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return record.Write(filepath.Join(c.dir, shim.StateName), body)
}

// reserve makes the directory and the entry of a new container. It fails if the id exists.
func (s *supervisor) reserve(id string) (*container, error) {
	if id == "" || filepath.Base(id) != id || id == "." || id == ".." {
		return nil, fmt.Errorf("container id %q is not a file name", id)
	}
	ctr := &container{
		dir:      filepath.Join(s.dir, shim.ContainersDir, id),
		pidfd:    -1,
		starting: true,
		ended:    make(chan struct{}),
		cleaned:  make(chan struct{}),
		state:    shim.State{ID: id},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[id] != nil {
		return nil, fmt.Errorf("container %s: %w", id, shim.ErrExists)
	}
	if err := os.Mkdir(ctr.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make container directory: %w", err)
	}
	s.containers[id] = ctr
	return ctr, nil
}

// discard removes a container whose start failed.
func (s *supervisor) discard(c *container) {
	if c.io != nil {
		s.closeIO(c)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		s.log.Printf("remove %s: %v", c.dir, err)
	}
	s.mu.Lock()
	delete(s.containers, c.state.ID)
	s.mu.Unlock()
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
	c.pidfd, err = s.watch(c.state.PID, func() {
		go s.handleExit(c) // ends when the last output is logged and the cgroup removed
	})
	return err
}

func (s *supervisor) find(id string) (*container, error) {
	s.mu.Lock()
	c := s.containers[id]
	s.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("container %s: %w", id, shim.ErrNotFound)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starting {
		return nil, fmt.Errorf("container %s is starting: %w", id, shim.ErrNotRunning)
	}
	return c, nil
}

// running is find for verbs that need the process.
func (s *supervisor) running(id string) (*container, error) {
	c, err := s.find(id)
	if err != nil {
		return nil, err
	}
	if st := c.snapshot(); !st.Running() {
		return nil, fmt.Errorf("container %s exited: %w", id, shim.ErrNotRunning)
	}
	return c, nil
}

func (s *supervisor) kill(id string, k shim.Kill) error {
	c, err := s.running(id)
	if err != nil {
		return err
	}
	if k.All || k.Signal == int(unix.SIGKILL) && c.snapshot().SharedPID {
		return s.killAll(c, unix.Signal(k.Signal))
	}
	return c.signal(unix.Signal(k.Signal))
}

func (c *container) signal(sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := unix.ESRCH
	if c.pidfd >= 0 {
		if serr := unix.PidfdSendSignal(c.pidfd, sig, nil, 0); !errors.As(serr, &err) {
			return serr
		}
	}
	if err == unix.ESRCH {
		return fmt.Errorf("signal container %s: %w", c.state.ID, shim.ErrNotRunning)
	}
	return fmt.Errorf("signal container %s: %w", c.state.ID, err)
}

// handleExit reaps an ended container, logs its last output, records and reports the exit, and removes the cgroup. It
// holds upgradeLock, so an upgrade does not interrupt it; if an upgrade comes first, the new program reaps the
// container.
func (s *supervisor) handleExit(ctr *container) {
	s.upgradeLock.RLock()
	defer s.upgradeLock.RUnlock()
	ctr.waitEntering()
	ctr.mu.Lock()
	exit := s.reap(ctr.state.PID, ctr.pidfd)
	_ = unix.Close(ctr.pidfd) // close of a pidfd does not fail
	ctr.pidfd = -1
	ctr.mu.Unlock()
	s.killRemaining(ctr)
	oom := s.oomKilled(ctr)
	if ctr.io != nil {
		s.closeIO(ctr)
	}
	ctr.mu.Lock()
	ctr.state.Exited = time.Now()
	ctr.state.ExitCode = exit.code
	ctr.state.Lost = exit.lost
	ctr.state.OOMKilled = oom && exit.code != 0
	ctr.mu.Unlock()
	s.recordExit(ctr)
}

// recordExit saves and reports the exit in state, and removes what the container leaves in the kernel.
func (s *supervisor) recordExit(c *container) {
	if err := c.save(); err != nil {
		s.log.Printf("container %s: record its exit: %v", c.state.ID, err)
	}
	s.publish(c.snapshot())
	close(c.ended)
	s.destroy(c)
	close(c.cleaned)
}

// remove kills a running container, waits for its end and removes it. It fails when the client disconnects first. An
// unknown container is not an error.
func (s *supervisor) remove(id string, gone <-chan struct{}) error {
	container, err := s.find(id)
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
	s.upgradeLock.RUnlock() // so that this wait does not block an upgrade
	ended := true
	select {
	case <-container.cleaned:
	case <-gone:
		ended = false
	}
	s.upgradeLock.RLock()
	if !ended {
		return fmt.Errorf("remove container %s: it was killed and has not ended", id)
	}
	s.mu.Lock()
	delete(s.containers, id)
	s.mu.Unlock()
	if err := os.RemoveAll(container.dir); err != nil {
		return fmt.Errorf("remove container directory: %w", err)
	}
	return nil
}
