// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import "C" // hold.c: what the held process does

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"keelson/runtime/shim"
)

// hold starts a process that keeps a PID namespace alive. It counts as a container that has no program, log or cgroup of its own.
func (s *supervisor) hold(id string, h shim.Hold) (*container, error) {
	c, err := s.reserve(id)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		s.discard(c)
		return nil, err
	}
	defer func() { _ = null.Close() }()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{h.Name}, &syscall.ProcAttr{
		Dir:   filepath.Join(s.dir, shim.EmptyDir),
		Env:   []string{"_KEELSON_HOLD=1"},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Setsid: true},
	})
	if err != nil {
		s.discard(c)
		return nil, fmt.Errorf("start namespace holder: %w", err)
	}
	c.state = shim.State{ID: id, PID: pid, Boot: s.boot, Started: time.Now(), Hold: true}
	if err := s.track(c); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // our child: its pid cannot mean another process
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		s.discard(c)
		return nil, err
	}
	return c, nil
}
