// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lostCode is the exit code of a process whose own exit code could not be read.
const lostCode = 255

// exit is the exit code of a process; lost: it is unknown.
type exit struct {
	code int
	lost bool
}

// watch calls ended once, on the exit loop, when process pid has ended but is not reaped. The caller closes the
// returned pidfd.
func (s *supervisor) watch(pid int, ended func()) (int, error) {
	s.children.Own(pid)
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		s.children.Disown(pid)
		return -1, fmt.Errorf("open process %d: %w", pid, err)
	}
	err = s.exits.add(fd, func() {
		s.exits.remove(fd)
		ended()
	})
	if err != nil {
		_ = unix.Close(fd) // a pidfd has nothing to lose
		s.children.Disown(pid)
		return -1, err
	}
	return fd, nil
}

// reap reaps an ended process and returns its exit. The caller holds upgradeLock until the exit is recorded: it cannot
// be read a second time.
func (s *supervisor) reap(pid, fd int) exit {
	defer s.children.Disown(pid)
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // not a child of this process
			return adoptedExit(fd)
		}
		return exit{code: statusCode(ws)}
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
func adoptedExit(fd int) exit {
	for range 100 {
		info := pidfdInfo{mask: pidfdInfoExit}
		// an ioctl takes a pointer
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
		if errno != 0 && errno != unix.ESRCH {
			break // an older kernel
		}
		if errno == 0 && info.mask&pidfdInfoExit != 0 {
			return exit{code: statusCode(unix.WaitStatus(uint32(info.exitCode)))} // a wait status is a bit pattern
		}
		time.Sleep(time.Millisecond)
	}
	return exit{code: lostCode, lost: true}
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
