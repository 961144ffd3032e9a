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

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"keelson/lib/record"
	"keelson/runtime/shim"
	"keelson/runtime/shim/reaper"
)

// eachState reads every container's state file and hands the container, entered in the list, to found.
func (s *supervisor) eachState(found func(*container) error) error {
	root := filepath.Join(s.dir, shim.ContainersDir)
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		c := &container{dir: dir, pidfd: -1, ended: make(chan struct{}), cleaned: make(chan struct{})}
		path := filepath.Join(dir, shim.StateName)
		damage, err := record.Read(path, func(body []byte) error {
			var st shim.State
			if err := json.Unmarshal(body, &st); err != nil {
				return err
			}
			if st.ID != e.Name() {
				return fmt.Errorf("its state is of container %q", st.ID)
			}
			c.state = st
			return nil
		})
		if damage != nil {
			kept, aerr := record.SetAside(path, filepath.Join(s.dir, "damaged"))
			s.log.Printf("container %s: damaged state restored from its copy, kept as %s: %v", e.Name(), kept, errors.Join(damage, aerr, c.save()))
		}
		if err != nil {
			// It was being started, and nobody was told of it.
			s.log.Printf("container %s: forgotten: %v", e.Name(), err)
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove half-made container: %w", err)
			}
			continue
		}
		s.containers[c.state.ID] = c
		if err := found(c); err != nil {
			return fmt.Errorf("container %s: %w", c.state.ID, err)
		}
	}
	return nil
}

// recover finds the containers of a supervisor that was killed, or that ran before the machine was restarted.
func (s *supervisor) recover() error {
	if err := s.thaw(); err != nil {
		return err
	}
	if err := s.eachState(s.settle); err != nil {
		return err
	}
	return s.sweep()
}

// thaw lets go on what the supervisor before kept frozen when it died. It comes before anything is loaded by libcontainer, which waits
// without end for a container that is being frozen and cannot be: one of its processes is in the middle of execve.
func (s *supervisor) thaw() error {
	entries, err := os.ReadDir(s.lcDir())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(s.lcDir(), e.Name(), "state.json"))
		if errors.Is(err, os.ErrNotExist) {
			continue // its start was cut short before it had a cgroup
		}
		var st libcontainer.State
		if err == nil {
			err = json.Unmarshal(raw, &st)
		}
		if err == nil && st.Config.Cgroups != nil {
			err = thawCgroup(st.Config.Cgroups, st.CgroupPaths)
		}
		if err != nil {
			s.log.Printf("container %s: thaw: %v", e.Name(), err)
		}
	}
	return nil
}

func thawCgroup(config *cgroups.Cgroup, paths map[string]string) error {
	m, err := manager.NewWithPaths(config, paths)
	if err != nil {
		return err
	}
	if !m.Exists() {
		return nil
	}
	return m.Freeze(cgroups.Thawed)
}

// settle takes up a container from its state file: ended ones are remembered, running ones adopted, and of those that ended while
// nobody looked it says so.
func (s *supervisor) settle(c *container) error {
	if !c.state.Running() {
		close(c.ended)
		s.destroy(c)
		close(c.cleaned)
		return nil
	}
	if c.state.Boot == s.boot {
		if st, err := reaper.StartTime(c.state.PID); err == nil && st == c.state.StartTime {
			return s.adopt(c)
		}
	}
	s.gather(c)
	c.state.Exited, c.state.ExitCode, c.state.Lost = time.Now(), lostCode, true
	s.conclude(c)
	return nil
}

// adopt takes over a running container whose supervisor died. Its FIFOs are where they were, with what it wrote meanwhile. A terminal
// died with the supervisor.
func (s *supervisor) adopt(c *container) error {
	if c.state.Hold {
		return s.follow(c)
	}
	c.io = &stdio{}
	if !c.state.Terminal {
		io, err := openFIFOs(c.dir, c.state.Stdin)
		if err != nil {
			return err
		}
		c.io.in, c.io.out = io.in, io.out
	}
	return s.resume(c, [2][]byte{})
}

// sweep ends what libcontainer knows and we do not: containers whose start was cut short.
func (s *supervisor) sweep() error {
	entries, err := os.ReadDir(s.lcDir())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		if s.containers[e.Name()] != nil {
			continue
		}
		lc, err := libcontainer.Load(s.lcDir(), e.Name())
		if errors.Is(err, libcontainer.ErrNotExist) {
			err = os.RemoveAll(filepath.Join(s.lcDir(), e.Name()))
		} else if err == nil {
			_ = lc.Signal(unix.SIGKILL) // it may be gone
			for range 200 {
				if st, serr := lc.Status(); serr != nil || st == libcontainer.Stopped {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			err = lc.Destroy()
		}
		if err != nil {
			s.log.Printf("container %s: clean up a start that was cut short: %v", e.Name(), err)
		}
	}
	return nil
}
