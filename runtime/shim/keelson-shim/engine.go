// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// engine is libcontainer with its state on disk: it manages what a container has in the kernel besides its first
// process. It knows containers by id only; a namespace holder is unknown to it.
type engine struct {
	dir string // one directory per container
	log *log.Logger
	// converting is held while libcontainer's list of default devices is another; see convert.
	converting sync.Mutex
}

// load reads a container from libcontainer's state on disk: keeping all of them in memory would take most of the
// supervisor's memory.
func (e *engine) load(id string) (*libcontainer.Container, error) {
	lc, err := libcontainer.Load(e.dir, id)
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", id, err)
	}
	return lc, nil
}

// start makes a container and starts its first process. began: when, if it came that far.
func (e *engine) start(id string, spec *specs.Spec, process *libcontainer.Process) (began time.Time, err error) {
	config, err := e.convert(id, spec)
	if err != nil {
		return began, fmt.Errorf("read container spec: %w", err)
	}
	if err := chownStreams(config, process); err != nil {
		return began, err
	}
	lc, err := libcontainer.Create(e.dir, id, config)
	if err != nil {
		return began, fmt.Errorf("create container: %w", err)
	}
	began = time.Now()
	if err := lc.Run(process); err != nil {
		_ = process.Signal(unix.SIGKILL) // init may wait for its start
		_, _ = process.Wait()
		if derr := lc.Destroy(); derr != nil {
			e.log.Printf("container %s: clean up after a failed start: %v", id, derr)
		}
		return began, startError(err)
	}
	return began, nil
}

// convert translates an OCI spec to libcontainer's configuration. The library is written for one container a
// process: it puts its own list of default devices into the configuration, and then changes their owners to the
// root of the container's user namespace. So each configuration gets a list of its own.
func (e *engine) convert(id string, spec *specs.Spec) (*configs.Config, error) {
	e.converting.Lock()
	defer e.converting.Unlock()
	defaults := specconv.AllowedDevices
	defer func() { specconv.AllowedDevices = defaults }()
	specconv.AllowedDevices = make([]*devices.Device, len(defaults))
	for i, d := range defaults {
		own := *d
		specconv.AllowedDevices[i] = &own
	}
	return specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: id, Spec: spec})
}

// startError shortens libcontainer's error to the form that runc's users know: the cause follows "unable to start
// container process".
func startError(err error) error {
	return errors.New(strings.Replace(err.Error(), ": error during container init: ", ": ", 1))
}

// destroy removes the container's cgroup and libcontainer's state. It is idempotent.
func (e *engine) destroy(id string) {
	lc, err := e.load(id)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return
	}
	if err == nil {
		err = lc.Destroy()
	} else {
		// libcontainer's state is damaged. The runtime, which has the spec, removes the cgroup with the container.
		err = errors.Join(err, os.RemoveAll(filepath.Join(e.dir, id)))
	}
	if err != nil {
		e.log.Printf("container %s: clean up: %v", id, err)
	}
}

// killAll signals every process in the container's cgroup.
func (e *engine) killAll(id string, sig unix.Signal) error {
	lc, err := e.load(id)
	if err != nil {
		return err
	}
	pids, err := lc.Processes()
	if err != nil {
		return fmt.Errorf("signal container %s: %w", id, err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d of container %s: %w", pid, id, err)
		}
	}
	return nil
}

// killRemaining kills the processes that outlive the first process of a container with a shared PID namespace. In a
// private one the kernel kills them.
func (e *engine) killRemaining(id string) {
	for range 200 {
		lc, err := e.load(id)
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
	e.log.Printf("container %s: some processes do not end after SIGKILL", id)
}

// oomKilled reports whether the OOM killer killed a process of the container.
func (e *engine) oomKilled(id string) bool {
	m, err := e.cgroups(id)
	if err != nil {
		return false
	}
	n, err := m.OOMKillCount()
	return err == nil && n > 0
}

// update changes a running container's resources.
func (e *engine) update(id string, resources *specs.LinuxResources) error {
	lc, err := e.load(id)
	if err != nil {
		return err
	}
	config := lc.Config()
	merge(config.Cgroups.Resources, resources)
	// Device rules do not change, and writing them again would deny access for a moment.
	config.Cgroups.SkipDevices = true
	defer func() { config.Cgroups.SkipDevices = false }()
	if err := lc.Set(config); err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	return nil
}

func (e *engine) freeze(id string, to cgroups.FreezerState) error {
	m, err := e.cgroups(id)
	if err != nil {
		return err
	}
	return m.Freeze(to)
}

func (e *engine) cgroups(id string) (cgroups.Manager, error) {
	lc, err := e.load(id)
	if err != nil {
		return nil, err
	}
	config := lc.Config()
	m, err := manager.New(config.Cgroups)
	if err != nil {
		return nil, fmt.Errorf("cgroups of container %s: %w", id, err)
	}
	return m, nil
}

// thaw thaws the containers that a dead supervisor left frozen. It must run before libcontainer.Load, which waits for
// ever for a container that is freezing and cannot freeze, because one of its processes is in execve.
func (e *engine) thaw() error {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		raw, err := os.ReadFile(filepath.Join(e.dir, entry.Name(), "state.json"))
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
			e.log.Printf("container %s: thaw: %v", entry.Name(), err)
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

// sweep removes containers that have libcontainer state but are not known: their start was interrupted.
func (e *engine) sweep(known func(id string) bool) error {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		if known(entry.Name()) {
			continue
		}
		lc, err := libcontainer.Load(e.dir, entry.Name())
		if errors.Is(err, libcontainer.ErrNotExist) {
			err = os.RemoveAll(filepath.Join(e.dir, entry.Name()))
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
			e.log.Printf("container %s: clean up an interrupted start: %v", entry.Name(), err)
		}
	}
	return nil
}
