// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package process follows processes from their start to their exit code: children, and those that a supervisor which
// died had started. The supervisor (keelson-shim) uses it for containers and execs. It does not start processes.
//
// Invariants:
//  1. A watched process stays a zombie until Reap, so its pid is not reused.
//  2. Its exit code is read once: Reap belongs to one goroutine, which records the exit.
package process

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim/epoll"
	"keelson/runtime/shim/reaper"
)

// LostCode is the exit code of a process whose own exit code could not be read.
const LostCode = 255

// Exit is the exit code of a process; Lost: it is unknown.
type Exit struct {
	Code int
	Lost bool
}

// Watcher watches processes.
type Watcher struct {
	children *reaper.Reaper
	exits    *epoll.Loop
}

// New returns a Watcher whose callbacks run on the loop exits. It owns the children that it watches.
func New(children *reaper.Reaper, exits *epoll.Loop) *Watcher {
	return &Watcher{children: children, exits: exits}
}

// Process is a watched process.
type Process struct {
	watcher *Watcher
	pid     int
	fd      int
}

// Watch calls ended once, on the loop, when process pid has ended but is not reaped. The caller then calls Reap.
func (w *Watcher) Watch(pid int, ended func()) (*Process, error) {
	w.children.Own(pid)
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		w.children.Disown(pid)
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	err = w.exits.Add(fd, func() {
		w.exits.Remove(fd)
		ended()
	})
	if err != nil {
		_ = unix.Close(fd) // a pidfd has nothing to lose
		w.children.Disown(pid)
		return nil, err
	}
	return &Process{watcher: w, pid: pid, fd: fd}, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.pid }

// Signal sends a signal; ESRCH: the process has ended and was reaped. A zombie takes signals.
func (p *Process) Signal(sig unix.Signal) error { return unix.PidfdSendSignal(p.fd, sig, nil, 0) }

// Runs reports whether the process has a running thread.
func (p *Process) Runs() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0) // descriptors are small
	return err != nil || n == 0
}

// Reap reaps the ended process and returns its exit.
func (p *Process) Reap() Exit {
	defer p.watcher.children.Disown(p.pid)
	defer func() { _ = unix.Close(p.fd) }() // a pidfd has nothing to lose
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(p.pid, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // not a child of this process
			return adoptedExit(p.fd)
		}
		return Exit{Code: statusCode(ws)}
	}
}

func statusCode(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// pidfdInfo is the kernel's struct pidfd_info, version 0 (Linux 6.13; the exit code since 6.15).
type pidfdInfo struct {
	mask     uint64
	cgroup   uint64
	ids      [11]uint32
	exitCode int32
}

const (
	pidfdGetInfo  = 0xC040FF0B // _IOWR(0xFF, 11, 64 bytes)
	pidfdInfoExit = 1 << 3
)

// adoptedExit reads the exit code of a process that is not a child, because a supervisor that died had started it. The
// kernel has the code only after its new parent has reaped it.
func adoptedExit(fd int) Exit {
	for range 100 {
		info := pidfdInfo{mask: pidfdInfoExit}
		// an ioctl takes a pointer
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
		if errno != 0 && errno != unix.ESRCH {
			break // an older kernel
		}
		if errno == 0 && info.mask&pidfdInfoExit != 0 {
			return Exit{Code: statusCode(unix.WaitStatus(uint32(info.exitCode)))} // a wait status is a bit pattern
		}
		time.Sleep(time.Millisecond)
	}
	return Exit{Code: LostCode, Lost: true}
}
