// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim/reaper"
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

// tracers keeps containers that may trace processes away from those that enter their PID namespaces.
type tracers struct {
	table    *table
	engine   *engine
	children *reaper.Reaper
	log      *log.Logger

	// freezing is held while containers are frozen: two starts that freeze each other's containers would deadlock.
	freezing sync.Mutex

	mu    sync.Mutex
	locks map[uint64]*pidnsLock // by PID namespace
}

// freeze freezes the other tracers in the PID namespace ns before a process of container ctr enters it; release
// thaws them. If ctr is a tracer that starts, it also waits until no process is entering ns, and blocks others until
// release, when ctr is among the tracers.
func (t *tracers) freeze(ctr *container, ns uint64) (release func(), err error) {
	if ns == 0 || ns == namespaceID("/proc/self/ns/pid") {
		return func() {}, nil
	}
	traces := ctr.becomesTracer()
	leave, err := t.lock(ns, traces)
	if err != nil {
		return nil, err
	}
	freezes := len(t.others(ctr, ns)) > 0
	if !freezes && !traces {
		return leave, nil
	}
	if freezes {
		t.freezing.Lock()
	}
	began := t.children.Now()
	var frozen []*container
	watchdog := time.AfterFunc(traceLimit, func() { t.children.KillUnowned(began) }) // the frozen containers wait
	release = func() {
		watchdog.Stop()
		for _, c := range frozen {
			if err := t.engine.freeze(c.state.ID, cgroups.Thawed); err != nil && c.signal(0) == nil {
				t.log.Printf("container %s: %v", c.state.ID, err)
			}
		}
		if freezes {
			t.freezing.Unlock()
		}
		leave()
	}
	if !freezes {
		return release, nil
	}
	for _, c := range t.others(ctr, ns) {
		frozen = append(frozen, c) // thaw it even if freezing fails half way
		if err := t.engine.freeze(c.state.ID, cgroups.Frozen); err != nil && c.signal(0) == nil {
			release()
			return nil, fmt.Errorf("freeze container %s, which may trace processes: %w", c.state.ID, err)
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

// lock locks the pidnsLock of ns; starter: for a tracer that starts. That waits for traceLimit at most:
// what blocks it is in its own pod.
func (t *tracers) lock(ns uint64, starter bool) (leave func(), err error) {
	t.mu.Lock()
	d := t.locks[ns]
	if d == nil {
		d = &pidnsLock{Weighted: semaphore.NewWeighted(pidnsLockUnits)}
		t.locks[ns] = d
	}
	d.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if d.users--; d.users == 0 {
			delete(t.locks, ns)
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

// others returns the other running containers in the PID namespace ns that may trace processes.
func (t *tracers) others(ctr *container, ns uint64) []*container {
	var out []*container
	for _, c := range t.table.all() {
		c.mu.Lock()
		st := c.state
		starting := c.starting
		c.mu.Unlock()
		// Of two containers in one namespace at least one has SharedPID.
		if c != ctr && !st.Hold && !starting && st.Running() && st.Tracer && (st.SharedPID || ctr.state.SharedPID) &&
			pidNamespaceOf(st.PID) == ns {
			out = append(out, c)
		}
	}
	return out
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
