// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process_test

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim/epoll"
	"keelson/runtime/shim/process"
	"keelson/runtime/shim/reaper"
)

// TestExit: the end of a process is reported once, while it is a zombie that still takes signals. Reap has its code.
func TestExit(t *testing.T) {
	loop, err := epoll.New(&sync.RWMutex{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = loop.Run() }() // ends with the process
	watcher := process.New(reaper.New(), loop)
	for script, want := range map[string]process.Exit{
		"read line; exit 7":      {Code: 7},
		"read line; exit 0":      {},
		"read line; kill -9 $$":  {Code: 128 + 9},
		"read line; kill -15 $$": {Code: 128 + 15},
	} {
		stdin, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		child, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{Files: []*os.File{stdin}})
		_ = stdin.Close()
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{}, 2)
		p, err := watcher.Watch(child.Pid, func() { ended <- struct{}{} })
		if err != nil {
			t.Fatal(err)
		}
		if !p.Runs() || p.PID() != child.Pid || len(ended) > 0 {
			t.Errorf("%s: it has ended before it could", script)
		}
		_ = feed.Close()
		<-ended
		if err := p.Signal(0); err != nil || p.Runs() {
			t.Errorf("%s: as a zombie it runs: %v, and a signal fails with %v", script, p.Runs(), err)
		}
		if got := p.Reap(); got != want {
			t.Errorf("%s: exit %+v, want %+v", script, got, want)
		}
		if err := unix.Waitid(unix.P_PID, child.Pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == nil {
			t.Errorf("%s: it is not reaped", script)
		}
		if len(ended) > 0 {
			t.Errorf("%s: the end was reported twice", script)
		}
	}
}

// TestLost: a process that cannot be watched is an error.
func TestLost(t *testing.T) {
	loop, err := epoll.New(&sync.RWMutex{})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := process.New(reaper.New(), loop).Watch(1<<22+1, func() {}); err == nil { // above the kernel's maximum
		t.Errorf("process %d is watched", p.PID())
	}
}
