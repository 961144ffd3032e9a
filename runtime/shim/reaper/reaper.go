// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package reaper reaps zombie children that have no owner: no code in this process waits for them. The supervisor
// (keelson-shim) uses it. It never reaps a child with an owner, which needs the exit status itself.
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

// Reaper reaps children without an owner.
//
// The supervisor has children that it did not start: processes that libcontainer forked for an exec that failed, and,
// because it is a subreaper, orphans of processes in the host's PID namespace. While such a zombie exists, the first
// process of its PID namespace cannot end (zap_pid_ns_processes in the kernel), and so the container does not end.
//
// The owner of a child is the code that called Own for it, or a start in progress (Begin), which may have forked it and
// may be about to wait for it.
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

// startClaim bounds how long a start in progress owns new children: a start that hangs must not block the end of other
// containers.
const startClaim = 30 * time.Second

// New returns a Reaper without owned children.
func New() *Reaper {
	return &Reaper{owned: map[int]struct{}{}, starts: map[*start]struct{}{}}
}

// Begin starts a start: children that are forked from now on are owned. The caller calls done after it has called Own
// for the children that it keeps and waits for no other.
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

// Now returns the start time of a child that is forked now, in clock ticks since boot.
func (r *Reaper) Now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // the start owns every child
	}
	return uint64(t.Nano()) / uint64(time.Second/userHz) // a time since boot is positive
}

// userHz is the number of clock ticks per second, the same on every architecture that Go supports.
const userHz = 100

// Own declares that the caller will reap pid.
func (r *Reaper) Own(pid int) {
	r.mu.Lock()
	r.owned[pid] = struct{}{}
	r.mu.Unlock()
}

// Disown declares that the owner has reaped pid, or will not.
func (r *Reaper) Disown(pid int) {
	r.mu.Lock()
	delete(r.owned, pid)
	r.mu.Unlock()
	r.sweep()
}

// sweep reaps ended children without an owner. waitid reports one ended child, always the same until it is reaped. If
// that one has an owner, others may be hidden behind it, so sweep then tries all children.
func (r *Reaper) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid := endedChild(); ; pid = endedChild() {
		if pid == 0 {
			return
		}
		if !r.unownedLocked(pid) {
			break
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil {
			return
		}
	}
	for pid := range children() {
		if r.unownedLocked(pid) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // WNOHANG: a running one is not affected
		}
	}
}

// children lists the children of this process from /proc, which may miss one while others start or end.
func children() iter.Seq[int] {
	return func(yield func(int) bool) {
		files, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			return
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				continue // the thread has ended; its children belong to another thread
			}
			for field := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(field); err == nil && !yield(pid) {
					return
				}
			}
		}
	}
}

// endedChild returns a child that waits to be reaped, or 0.
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
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16))) // the kernel's siginfo_t on 64-bit machines
	}
}

func (r *Reaper) unownedLocked(pid int) bool {
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

// Run makes the process a subreaper and sweeps whenever a child ends, until the process ends.
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
	r.sweep() // children that ended before an upgrade
	return nil
}

// KillUnowned kills the children that were started since then and for which Own was not called: those of starts in
// progress.
func (r *Reaper) KillUnowned(since uint64) {
	for pid := range children() {
		began, err := StartTime(pid)
		r.mu.Lock()
		if _, owned := r.owned[pid]; err == nil && !owned && began >= since {
			// our child; its pid is not reused, because only sweep could reap it, and does not now
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		r.mu.Unlock()
	}
}

// StartTime returns field 22 of /proc/PID/stat: with pid and boot id it identifies a process. It is an error when the
// process is gone.
func StartTime(pid int) (uint64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may contain any character.
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(f) < 20 {
		return 0, fmt.Errorf("read start time of process %d: %d fields", pid, len(f))
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}
