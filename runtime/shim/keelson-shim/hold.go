// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import "C" // hold.c: what the held process does

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

// holdLimit bounds how long a namespace holder may take to confine itself.
const holdLimit = 10 * time.Second

// hold starts a process that keeps a PID namespace alive. It counts as a container that has no program, log or cgroup of its own.
func (s *supervisor) hold(id string, h shim.Hold) (*container, error) {
	c, err := s.reserve(id)
	if err != nil {
		return nil, err
	}
	defer s.children.Begin()()
	c.state = shim.State{ID: id, Boot: s.boot, Started: time.Now(), Hold: true}
	if c.state.PID, err = s.startHolder(h); err != nil {
		s.discard(c)
		return nil, fmt.Errorf("start namespace holder: %w", err)
	}
	if err := s.track(c); err != nil {
		endChild(c.state.PID)
		s.discard(c)
		return nil, err
	}
	return c, nil
}

// endChild kills and reaps a child of ours, whose pid therefore cannot mean another process.
func endChild(pid int) {
	_ = unix.Kill(pid, unix.SIGKILL)
	_, _ = unix.Wait4(pid, nil, 0, nil)
}

// startHolder returns when the holder has nothing left that a container could take from it; hold.c says how.
func (s *supervisor) startHolder(h shim.Hold) (int, error) {
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
	said, says, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = said.Close() }()
	status, answer, err := os.Pipe()
	files = append(files, says, answer)
	if err != nil {
		return 0, err
	}
	defer func() { _ = status.Close() }()
	give := []uintptr{null.Fd(), says.Fd(), null.Fd(), answer.Fd()}
	for _, path := range h.Namespaces {
		ns, err := open(os.Open(path))
		if err != nil {
			return 0, err
		}
		give = append(give, ns.Fd())
	}
	first, err := syscall.ForkExec("/proc/self/exe", []string{h.Name}, &syscall.ProcAttr{
		Dir: filepath.Join(s.dir, shim.EmptyDir), Env: []string{"_KEELSON_HOLD=" + strconv.Itoa(len(h.Namespaces))}, Files: give, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	shim.CloseAll(files)
	files = nil
	pid, err := heldPID(said, status)
	endChild(first) // it has done its work
	if err != nil && pid > 0 {
		endChild(pid)
	}
	return pid, err
}

// heldPID reads what the two processes of a starting holder say: the second one's id, and how it went.
func heldPID(said, status *os.File) (int, error) {
	limit := time.Now().Add(holdLimit)
	if err := errors.Join(said.SetReadDeadline(limit), status.SetReadDeadline(limit)); err != nil {
		return 0, err
	}
	pid := make([]byte, 4)
	_, perr := io.ReadFull(said, pid)
	how, err := io.ReadAll(status)
	n := int(binary.NativeEndian.Uint32(pid))
	switch {
	case err != nil:
		return n, fmt.Errorf("wait until it is confined: %w", err)
	case string(how) == "ready" && perr == nil:
		return n, nil
	case len(how) == 0:
		return n, errors.New("it ended without a word")
	}
	return n, errors.New(string(how))
}
