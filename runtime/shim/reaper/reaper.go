// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package reaper reaps the children of a process that nobody waits for. The shim's supervisor uses it. It never reaps a child that has an
// owner, which learns itself how that ended.
package reaper

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reaper reaps the children that nobody waits for.
//
// The supervisor has children that it did not ask for: a process that libcontainer forked on the way to an exec that failed, and, as
// a subreaper, what processes in the host's PID namespace leave behind. One that ended and is not reaped is more than untidy: as long
// as it is there the first process of its PID namespace cannot end (zap_pid_ns_processes), so neither can its container.
//
// Every child has an owner: whoever watches it, which reaps it itself, or a start under way, which may have forked it and may be about to
// wait for it. Children of neither are strays.
type Reaper struct {
	mu     sync.Mutex
	owned  map[int]struct{}
	starts map[*start]struct{}
}

// start is a call that forks children and waits for some of them.
type start struct {
	began uint64 // clock ticks since boot, as of processes
	at    time.Time
}

// startClaim is for how long a start owns the children that began after it. One that hangs for longer must not keep others from their end.
const startClaim = 30 * time.Second

// New owns no child yet.
func New() *Reaper {
	return &Reaper{owned: map[int]struct{}{}, starts: map[*start]struct{}{}}
}

// Begin announces children. The caller calls done when it owns those it keeps, and waits for none of the others any more.
func (r *Reaper) Begin() (done func()) {
	s := &start{at: time.Now(), began: r.Now()}
	r.mu.Lock()
	r.starts[s] = struct{}{}
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		delete(r.starts, s)
		r.mu.Unlock()
		r.sweep()
	}
}

// Now is the start time that a child forked now would have.
func (r *Reaper) Now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // the start owns every child
	}
	return uint64(t.Nano()) / uint64(time.Second/userHz) //nolint:gosec // a time since boot is positive
}

// userHz is the unit of a process's start time, which is the same on every architecture that Go knows.
const userHz = 100

// Own says that the caller will reap pid.
func (r *Reaper) Own(pid int) {
	r.mu.Lock()
	r.owned[pid] = struct{}{}
	r.mu.Unlock()
}

// Disown says that pid is reaped, or never will be by its owner.
func (r *Reaper) Disown(pid int) {
	r.mu.Lock()
	delete(r.owned, pid)
	r.mu.Unlock()
	r.sweep()
}

// sweep reaps strays. The kernel names one ended child at a time, always the same. When that has an owner, strays may be behind it: while
// starts come one after the other there may always be a young one in front, so all children are looked at then.
func (r *Reaper) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid := endedChild(); ; pid = endedChild() {
		if pid == 0 {
			return
		}
		if !r.strayLocked(pid) {
			break
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil {
			return
		}
	}
	for pid := range children() {
		if r.strayLocked(pid) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // one that runs is left
		}
	}
}

// children are this process's, as far as /proc tells: it may miss one while others come and go.
func children() iter.Seq[int] {
	return func(yield func(int) bool) {
		files, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			return
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				continue // the thread has ended; its children are another's now
			}
			for field := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(field); err == nil && !yield(pid) {
					return
				}
			}
		}
	}
}

// endedChild is a child that waits to be reaped, or 0.
func endedChild() int {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || info.Signo == 0 {
			return 0
		}
		// The process id follows signal number, error and code, aligned to eight bytes.
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16))) //nolint:gosec // the kernel's siginfo_t on 64-bit machines
	}
}

func (r *Reaper) strayLocked(pid int) bool {
	if _, ok := r.owned[pid]; ok {
		return false
	}
	oldest := uint64(math.MaxUint64)
	for s := range r.starts {
		if time.Since(s.at) < startClaim {
			oldest = min(oldest, s.began)
		}
	}
	began, err := StartTime(pid)
	return err == nil && began < oldest
}

// Run sweeps whenever a child ends, for as long as the process lives.
func (r *Reaper) Run() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() { // ends with the process
		for range ended {
			r.sweep()
		}
	}()
	r.sweep() // what ended under an earlier program
	return nil
}

// KillUnowned ends the children that began since then and that nobody owns yet: those of starts under way.
func (r *Reaper) KillUnowned(since uint64) {
	for pid := range children() {
		began, err := StartTime(pid)
		r.mu.Lock()
		if _, owned := r.owned[pid]; err == nil && !owned && began >= since {
			_ = unix.Kill(pid, unix.SIGKILL) // our child, which only sweep reaps, and not now
		}
		r.mu.Unlock()
	}
}

// StartTime is field 22 of /proc/PID/stat: with the boot id it names a process for ever. It is an error when the process is gone.
func StartTime(pid int) (uint64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may hold anything.
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(f) < 20 {
		return 0, fmt.Errorf("read start time of process %d: %d fields", pid, len(f))
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}
