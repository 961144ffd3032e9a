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

// container is one container's live part. Everything that must survive is in state, which its file repeats.
type container struct {
	dir   string
	pidfd int // valid while it runs
	io    *stdio
	// ended is closed when the exit is recorded and told; cleaned when its cgroup is gone too.
	ended   chan struct{}
	cleaned chan struct{}
	seeking atomic.Bool // null is looking for the container's null device
	// entering is held for reading while a process starts in the container: its first process is not reaped then.
	entering sync.RWMutex

	mu       sync.Mutex
	starting bool // reserved: state is not filled in yet
	state    shim.State
}

func (c *container) snapshot() shim.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// save writes the state file, whole or not at all, and twice.
func (c *container) save() error {
	body, err := json.Marshal(c.snapshot())
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	return record.Write(filepath.Join(c.dir, shim.StateName), body)
}

// reserve makes the place for a new container, so that no second one gets its id.
func (s *supervisor) reserve(id string) (*container, error) {
	if id == "" || filepath.Base(id) != id || id == "." || id == ".." {
		return nil, fmt.Errorf("container id %q is not a file name", id)
	}
	c := &container{
		dir: filepath.Join(s.dir, shim.ContainersDir, id), pidfd: -1, starting: true,
		ended: make(chan struct{}), cleaned: make(chan struct{}), state: shim.State{ID: id},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.containers[id] != nil {
		return nil, fmt.Errorf("container %s: %w", id, shim.ErrExists)
	}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make container directory: %w", err)
	}
	s.containers[id] = c
	return c, nil
}

// discard forgets a container that did not come to life.
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

// track records a started process and watches for its end.
func (s *supervisor) track(c *container) error {
	st, err := reaper.StartTime(c.state.PID)
	if err != nil {
		return fmt.Errorf("read start time: %w", err)
	}
	c.mu.Lock()
	c.state.StartTime, c.starting = st, false
	c.mu.Unlock()
	if err := c.save(); err != nil {
		return err
	}
	return s.follow(c)
}

// follow waits for the end of a container whose state is recorded.
func (s *supervisor) follow(c *container) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	c.pidfd, err = s.watch(c.state.PID, func() {
		go s.finish(c) // ends when the container's last output and cgroup are dealt with
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

// finish is the end of a container: its last output goes to the log, its exit to disk, the news to subscribers, its cgroup away.
// Holding the gate, it is never cut short by an upgrade; before it has the gate, the process waits to be reaped by the next program.
func (s *supervisor) finish(c *container) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	c.settled()
	c.mu.Lock()
	e := s.reap(c.state.PID, c.pidfd)
	_ = unix.Close(c.pidfd) // a pidfd has nothing to lose
	c.pidfd = -1
	c.mu.Unlock()
	s.gather(c)
	oom := s.oomKilled(c)
	if c.io != nil {
		s.closeIO(c)
	}
	c.mu.Lock()
	c.state.Exited, c.state.ExitCode, c.state.Lost = time.Now(), e.code, e.lost
	c.state.OOMKilled = oom && e.code != 0
	c.mu.Unlock()
	s.conclude(c)
}

// conclude records and tells an exit that is in the state, and removes what the container leaves in the kernel.
func (s *supervisor) conclude(c *container) {
	if err := c.save(); err != nil {
		s.log.Printf("container %s: record its exit: %v", c.state.ID, err)
	}
	s.publish(c.snapshot())
	close(c.ended)
	s.destroy(c)
	close(c.cleaned)
}

// remove kills the container when it runs and forgets it, unless the client is gone before it has ended. Unknown containers are removed
// already.
func (s *supervisor) remove(id string, gone <-chan struct{}) error {
	c, err := s.find(id)
	if errors.Is(err, shim.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if st := c.snapshot(); st.Running() {
		if err := s.kill(id, shim.Kill{Signal: int(unix.SIGKILL)}); err != nil && !errors.Is(err, shim.ErrNotRunning) {
			return err
		}
	}
	s.gate.RUnlock() // finish needs an upgrade to be able to pass it by
	ended := true
	select {
	case <-c.cleaned:
	case <-gone:
		ended = false
	}
	s.gate.RLock()
	if !ended {
		return fmt.Errorf("remove container %s: it was killed and has not ended", id)
	}
	s.mu.Lock()
	delete(s.containers, id)
	s.mu.Unlock()
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove container directory: %w", err)
	}
	return nil
}
