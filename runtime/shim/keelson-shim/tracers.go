// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// A process that enters a container joins the PID namespace while it still has the host's root directory and all
// capabilities. Other containers in that namespace see it, and one with CAP_SYS_PTRACE (a tracer) could attach to it
// with ptrace. So tracers are frozen for these few milliseconds. (A tracer that is entered itself cannot be frozen: the
// process could not join its frozen cgroup. See decisions/0054.)

// traceLimit bounds the time for which tracers are frozen. A process that takes longer to enter is killed: something in
// its pod blocks it.
const traceLimit = 20 * time.Second

// canTrace reports whether a process may use ptrace on others.
func canTrace(p *specs.Process) bool {
	return p.Capabilities != nil && slices.Contains(p.Capabilities.Bounding, "CAP_SYS_PTRACE")
}

// freezeTracers freezes the other tracers in the PID namespace ns before a process of container ctr enters it; release
// thaws them. If ctr is a tracer that starts, it also waits until no process is entering ns, and blocks others until
// release, when ctr is among the tracers.
func (s *supervisor) freezeTracers(ctr *container, ns uint64) (release func(), err error) {
	if ns == 0 || ns == namespaceID("/proc/self/ns/pid") {
		return func() {}, nil
	}
	traces := ctr.becomesTracer()
	leave, err := s.lockPIDNamespace(ns, traces)
	if err != nil {
		return nil, err
	}
	freezes := len(s.tracers(ctr, ns)) > 0
	if !freezes && !traces {
		return leave, nil
	}
	if freezes {
		s.freezeMu.Lock() // two starts that freeze each other's containers would deadlock
	}
	began := s.children.Now()
	var frozen []*container
	watchdog := time.AfterFunc(traceLimit, func() { s.children.KillUnowned(began) }) // the frozen containers wait
	release = func() {
		watchdog.Stop()
		for _, t := range frozen {
			if err := s.freeze(t, cgroups.Thawed); err != nil && t.signal(0) == nil {
				s.log.Printf("container %s: %v", t.state.ID, err)
			}
		}
		if freezes {
			s.freezeMu.Unlock()
		}
		leave()
	}
	if !freezes {
		return release, nil
	}
	for _, t := range s.tracers(ctr, ns) {
		frozen = append(frozen, t) // thaw it even if freezing fails half way
		if err := s.freeze(t, cgroups.Frozen); err != nil && t.signal(0) == nil {
			release()
			return nil, fmt.Errorf("freeze container %s, which may trace processes: %w", t.state.ID, err)
		}
	}
	return release, nil
}

// becomesTracer reports whether the container is a tracer that is starting.
func (c *container) becomesTracer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starting && c.state.Tracer
}

// pidnsLock is the lock of one PID namespace. Processes that enter it hold one unit, a tracer that starts in it holds
// all of them. It is first come, first served: processes that keep entering do not keep a tracer waiting.
type pidnsLock struct {
	*semaphore.Weighted
	users int
}

const pidnsLockUnits = 1 << 30

// lockPIDNamespace locks the pidnsLock of ns; starter: for a tracer that starts. That waits for traceLimit at most:
// what blocks it is in its own pod.
func (s *supervisor) lockPIDNamespace(ns uint64, starter bool) (leave func(), err error) {
	s.mu.Lock()
	d := s.pidnsLocks[ns]
	if d == nil {
		d = &pidnsLock{Weighted: semaphore.NewWeighted(pidnsLockUnits)}
		s.pidnsLocks[ns] = d
	}
	d.users++
	s.mu.Unlock()
	forget := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.users--; d.users == 0 {
			delete(s.pidnsLocks, ns)
		}
	}
	ctx := context.Background()
	units := int64(1)
	if starter {
		limited, cancel := context.WithTimeout(ctx, traceLimit)
		defer cancel()
		ctx = limited
		units = pidnsLockUnits
	}
	if d.Acquire(ctx, units) != nil {
		forget()
		return nil, errors.New("the container may trace processes, and another process takes too long to enter its " +
			"PID namespace")
	}
	return func() {
		d.Release(units)
		forget()
	}, nil
}

// tracers returns the other running containers in the PID namespace ns that may trace processes.
func (s *supervisor) tracers(c *container, ns uint64) []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*container
	for _, t := range s.containers {
		t.mu.Lock()
		st := t.state
		starting := t.starting
		t.mu.Unlock()
		// Of two containers in one namespace at least one has SharedPID.
		if t != c && !st.Hold && !starting && st.Running() && st.Tracer && (st.SharedPID || c.state.SharedPID) &&
			pidNamespaceOf(st.PID) == ns {
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

// pidNamespaceOf returns the inode of a process's PID namespace; 0 when the process is gone.
func pidNamespaceOf(pid int) uint64 { return namespaceID("/proc/" + strconv.Itoa(pid) + "/ns/pid") }

func namespaceID(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// joinedPIDNamespace returns the inode of the PID namespace that a container of this spec joins; 0 when it gets a new
// one or uses the host's.
func joinedPIDNamespace(spec *specs.Spec) uint64 {
	for _, n := range spec.Linux.Namespaces {
		if n.Type == specs.PIDNamespace && n.Path != "" {
			return namespaceID(n.Path)
		}
	}
	return 0
}
