// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// holdLimit bounds the start of a namespace holder.
const holdLimit = 10 * time.Second

// hold starts a process that keeps a PID namespace alive. It is listed as a container without program, log and cgroup.
func (s *supervisor) hold(id string, h shim.Hold) (*container, error) {
	c, err := s.table.reserve(id)
	if err != nil {
		return nil, err
	}
	defer s.children.Begin()()
	c.state = shim.State{
		ID:      id,
		Boot:    s.boot,
		Started: time.Now(),
		Hold:    true,
	}
	if c.state.PID, err = startHolder(filepath.Join(s.dir, shim.EmptyDir), h); err != nil {
		s.discard(c)
		return nil, fmt.Errorf("start namespace holder: %w", err)
	}
	if err := s.recordStart(c); err != nil {
		killChild(c.state.PID)
		s.discard(c)
		return nil, err
	}
	return c, nil
}

// killChild kills and reaps a child. A child's pid is not reused before it is reaped.
func killChild(pid int) {
	_ = unix.Kill(pid, unix.SIGKILL)
	_, _ = unix.Wait4(pid, nil, 0, nil)
}

// startHolder starts a holder in dir and waits until it has given up everything that a container could misuse (see
// hold.c).
func startHolder(dir string, h shim.Hold) (int, error) {
	var files []*os.File
	defer func() { shim.CloseAll(files) }()
	open := func(f *os.File, err error) (*os.File, error) {
		files = append(files, f)
		return f, err
	}
	null, err := open(os.OpenFile(os.DevNull, os.O_RDWR, 0))
	if err != nil {
		return 0, err
	}
	pidPipe, pidPipeEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = pidPipe.Close() }()
	status, answer, err := os.Pipe()
	files = append(files, pidPipeEnd, answer)
	if err != nil {
		return 0, err
	}
	defer func() { _ = status.Close() }()
	give := []uintptr{null.Fd(), pidPipeEnd.Fd(), null.Fd(), answer.Fd()}
	for _, path := range h.Namespaces {
		ns, err := open(os.Open(path))
		if err != nil {
			return 0, err
		}
		give = append(give, ns.Fd())
	}
	first, err := syscall.ForkExec("/proc/self/exe", []string{h.Name}, &syscall.ProcAttr{
		Dir:   dir,
		Env:   []string{"_KEELSON_HOLD=" + strconv.Itoa(len(h.Namespaces))},
		Files: give,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	shim.CloseAll(files)
	files = nil
	pid, err := holderPID(pidPipe, status)
	killChild(first) // it has forked the holder
	if err != nil && pid > 0 {
		killChild(pid)
	}
	return pid, err
}

// holderPID reads the pid of the holder from its parent, and the result from the holder.
func holderPID(pidPipe, status *os.File) (int, error) {
	limit := time.Now().Add(holdLimit)
	if err := errors.Join(pidPipe.SetReadDeadline(limit), status.SetReadDeadline(limit)); err != nil {
		return 0, err
	}
	pid := make([]byte, 4)
	_, perr := io.ReadFull(pidPipe, pid)
	how, err := io.ReadAll(status)
	n := int(binary.NativeEndian.Uint32(pid))
	switch {
	case err != nil:
		return n, fmt.Errorf("wait until it is confined: %w", err)
	case string(how) == "ready" && perr == nil:
		return n, nil
	case len(how) == 0:
		return n, errors.New("it ended and reported nothing")
	}
	return n, errors.New(string(how))
}
