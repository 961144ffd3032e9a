// SPDX-License-Identifier: Apache-2.0

//go:build linux

package reaper

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// thread runs functions on one thread: the kernel keeps a process's children by the thread that forked them.
type thread chan func()

func newThread(t *testing.T) thread {
	do := make(thread)
	go func() { // ends with the test
		runtime.LockOSThread()
		for f := range do {
			f()
		}
	}()
	t.Cleanup(func() { close(do) })
	return do
}

// zombie is a child of the thread that has ended and is not reaped.
func (do thread) zombie(t *testing.T) int {
	t.Helper()
	pid := make(chan int)
	do <- func() {
		p, err := os.StartProcess("/proc/self/exe", []string{"reaper.test", "-test.run=^$"}, &os.ProcAttr{})
		if err != nil {
			pid <- 0
			return
		}
		pid <- p.Pid
	}
	n := <-pid
	if n == 0 {
		t.Fatal("no process can be started")
	}
	var info unix.Siginfo
	for {
		if err := unix.Waitid(unix.P_PID, n, &info, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
}

func isChild(pid int) bool {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil
}

// TestStraysBehindOthers: a zombie with an owner does not prevent the reaping of zombies without one, in whatever order
// the kernel reports them.
func TestStraysBehindOthers(t *testing.T) {
	a := newThread(t)
	b := newThread(t)
	reaper := New()
	owned := a.zombie(t)
	reaper.Own(owned)
	old := []int{a.zombie(t), b.zombie(t)}
	time.Sleep(20 * time.Millisecond) // start times are in hundredths of a second
	done := reaper.Begin()
	young := []int{a.zombie(t), b.zombie(t)}
	reaper.sweep()
	for _, pid := range old {
		if isChild(pid) {
			t.Errorf("a stray is left behind an owned child or a young one")
		}
	}
	if !isChild(owned) || !isChild(young[0]) || !isChild(young[1]) {
		t.Error("a child with an owner was reaped")
	}
	done()
	if isChild(young[0]) || isChild(young[1]) {
		t.Error("what a start left is not reaped at its end")
	}
	if !isChild(owned) {
		t.Error("a child with an owner was reaped")
	}
	reaper.Disown(owned)
	if isChild(owned) {
		t.Error("a child without an owner is left")
	}
}

// TestKillUnowned: KillUnowned kills the children that were started since a time and have no owner.
func TestKillUnowned(t *testing.T) {
	reaper := New()
	start := func() *os.Process {
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := start()
	time.Sleep(20 * time.Millisecond)
	since := reaper.Now()
	owned := start()
	other := start()
	reaper.Own(owned.Pid)
	reaper.KillUnowned(since)
	if st, err := other.Wait(); err != nil || st.Success() {
		t.Errorf("an unowned child: %v, %v", st, err)
	}
	for _, p := range []*os.Process{before, owned} {
		if err := p.Signal(unix.Signal(0)); err != nil {
			t.Errorf("a child that was to be left: %v", err)
		}
		_ = p.Kill()
		_, _ = p.Wait() // killed just now
	}
}
