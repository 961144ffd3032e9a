// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A process on its way into a container is in the container's PID namespace before it has given up the host: while it still has the
// host's root directory, or all capabilities. Other containers in that namespace see it, and one with CAP_SYS_PTRACE may take hold of it.
// So these are frozen for the few milliseconds. (A container with CAP_SYS_PTRACE that is entered itself cannot be: the process could not
// join its frozen cgroup. decisions/0054 says more.)

// traceLimit is how long others are kept frozen for one start. One that takes longer is ended: something in the pod holds it up.
const traceLimit = 20 * time.Second

// tracer tells whether a container's processes may trace others.
func tracer(p *specs.Process) bool {
	return p.Capabilities != nil && slices.Contains(p.Capabilities.Bounding, "CAP_SYS_PTRACE")
}

// alone freezes every other container that could take hold of a process that enters the PID namespace ns of container c, until release.
// When c itself starts and may trace, it waits until nobody is on the way into ns, and nobody sets out until it is among the tracers.
func (s *supervisor) alone(c *container, ns uint64) (release func(), err error) {
	if ns == 0 || ns == namespaceID("/proc/self/ns/pid") {
		return func() {}, nil
	}
	traces := c.becomesTracer()
	leave, err := s.door(ns, traces)
	if err != nil {
		return nil, err
	}
	held := len(s.tracers(c, ns)) > 0
	if !held && !traces {
		return leave, nil
	}
	if held {
		s.entry.Lock() // two starts that froze each other's containers would wait for each other
	}
	began := s.children.Now()
	var frozen []*container
	watchdog := time.AfterFunc(traceLimit, func() { s.children.KillUnowned(began) }) // others wait meanwhile
	release = func() {
		watchdog.Stop()
		for _, t := range frozen {
			if err := s.freeze(t, cgroups.Thawed); err != nil && t.signal(0) == nil {
				s.log.Printf("container %s: %v", t.state.ID, err)
			}
		}
		if held {
			s.entry.Unlock()
		}
		leave()
	}
	if !held {
		return release, nil
	}
	for _, t := range s.tracers(c, ns) {
		frozen = append(frozen, t) // also when it fails half way
		if err := s.freeze(t, cgroups.Frozen); err != nil && t.signal(0) == nil {
			release()
			return nil, fmt.Errorf("hold container %s, which may trace processes: %w", t.state.ID, err)
		}
	}
	return release, nil
}

// becomesTracer tells whether the container is about to start and may trace.
func (c *container) becomesTracer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starting && c.state.Tracer
}

// door is the way into one PID namespace: held for reading by who enters, and for writing by a container that starts there and may trace.
type door struct {
	sync.RWMutex
	users int
}

// door enters the PID namespace ns. A container that may trace waits for it no longer than traceLimit: what holds it up is in its own pod.
func (s *supervisor) door(ns uint64, tracer bool) (leave func(), err error) {
	s.mu.Lock()
	d := s.doors[ns]
	if d == nil {
		d = &door{}
		s.doors[ns] = d
	}
	d.users++
	s.mu.Unlock()
	forget := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.users--; d.users == 0 {
			delete(s.doors, ns)
		}
	}
	if !tracer {
		d.RLock()
		return func() { d.RUnlock(); forget() }, nil
	}
	for end := time.Now().Add(traceLimit); !d.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			forget()
			return nil, errors.New("the container may trace processes, and another process has been on its way into its PID namespace for too long")
		}
	}
	return func() { d.Unlock(); forget() }, nil
}

// tracers are the other running containers in the PID namespace ns that may trace processes.
func (s *supervisor) tracers(c *container, ns uint64) []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*container
	for _, t := range s.containers {
		t.mu.Lock()
		st, starting := t.state, t.starting
		t.mu.Unlock()
		// Of two containers in one namespace at least one has joined the other's or the pod's.
		if t != c && !st.Hold && !starting && st.Running() && st.Tracer && (st.SharedPID || c.state.SharedPID) && pidNamespaceOf(st.PID) == ns {
			out = append(out, t)
		}
	}
	return out
}

func (s *supervisor) freeze(c *container, to cgroups.FreezerState) error {
	lc, err := s.load(c)
	if err != nil {
		return err
	}
	config := lc.Config()
	m, err := manager.New(config.Cgroups)
	if err != nil {
		return fmt.Errorf("freezer: %w", err)
	}
	return m.Freeze(to)
}

// pidNamespaceOf identifies a process's PID namespace; 0 when it is gone.
func pidNamespaceOf(pid int) uint64 { return namespaceID("/proc/" + strconv.Itoa(pid) + "/ns/pid") }

func namespaceID(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// joins identifies the PID namespace that a container of this spec joins; 0 when it gets one of its own, or has the host's.
func joins(spec *specs.Spec) uint64 {
	for _, n := range spec.Linux.Namespaces {
		if n.Type == specs.PIDNamespace && n.Path != "" {
			return namespaceID(n.Path)
		}
	}
	return 0
}
