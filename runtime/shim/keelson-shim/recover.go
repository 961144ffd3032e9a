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

// eachState reads every container's state file, adds the container and calls each for it.
func (s *supervisor) eachState(each func(*container) error) error {
	root := filepath.Join(s.dir, shim.ContainersDir)
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		ctr := &container{
			dir:     dir,
			pidfd:   -1,
			ended:   make(chan struct{}),
			cleaned: make(chan struct{}),
		}
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
			kept, aerr := record.SetAside(path, filepath.Join(s.dir, "damaged"))
			s.log.Printf("container %s: damaged state restored from its copy, kept as %s: %v", entry.Name(), kept,
				errors.Join(damage, aerr, ctr.save()))
		}
		if err != nil {
			// Its start was interrupted, and no client got a reply.
			s.log.Printf("container %s: incomplete, removed: %v", entry.Name(), err)
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove incomplete container: %w", err)
			}
			continue
		}
		s.containers[ctr.state.ID] = ctr
		if err := each(ctr); err != nil {
			return fmt.Errorf("container %s: %w", ctr.state.ID, err)
		}
	}
	return nil
}

// recover finds the containers of a supervisor that was killed, or that ran before a reboot.
func (s *supervisor) recover() error {
	if err := s.thaw(); err != nil {
		return err
	}
	if err := s.eachState(s.restore); err != nil {
		return err
	}
	return s.sweep()
}

// thaw thaws the containers that a dead supervisor left frozen. It must run before libcontainer.Load, which waits for
// ever for a container that is freezing and cannot freeze, because one of its processes is in execve.
func (s *supervisor) thaw() error {
	entries, err := os.ReadDir(s.lcDir())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		raw, err := os.ReadFile(filepath.Join(s.lcDir(), entry.Name(), "state.json"))
		if errors.Is(err, os.ErrNotExist) {
			continue // its start was interrupted before it had a cgroup
		}
		var st libcontainer.State
		if err == nil {
			err = json.Unmarshal(raw, &st)
		}
		if err == nil && st.Config.Cgroups != nil {
			err = thawCgroup(st.Config.Cgroups, st.CgroupPaths)
		}
		if err != nil {
			s.log.Printf("container %s: thaw: %v", entry.Name(), err)
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

// restore handles a container that was read from its state file: a running one is adopted, and one that ended without a
// supervisor is recorded as lost.
func (s *supervisor) restore(ctr *container) error {
	if !ctr.state.Running() {
		close(ctr.ended)
		s.destroy(ctr)
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
	ctr.state.ExitCode = lostCode
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
	ctr.io = &stdio{}
	if !ctr.state.Terminal {
		io, err := openFIFOs(ctr.dir, ctr.state.Stdin)
		if err != nil {
			return err
		}
		ctr.io.in = io.in
		ctr.io.out = io.out
	}
	return s.resumeOutput(ctr, [2][]byte{})
}

// sweep removes containers that have libcontainer state but no state file: their start was interrupted.
func (s *supervisor) sweep() error {
	entries, err := os.ReadDir(s.lcDir())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		if s.containers[entry.Name()] != nil {
			continue
		}
		lc, err := libcontainer.Load(s.lcDir(), entry.Name())
		if errors.Is(err, libcontainer.ErrNotExist) {
			err = os.RemoveAll(filepath.Join(s.lcDir(), entry.Name()))
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
			s.log.Printf("container %s: clean up an interrupted start: %v", entry.Name(), err)
		}
	}
	return nil
}
