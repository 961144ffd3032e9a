// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// session is a process that runs in a container for one connection.
type session struct {
	id    string // of the container
	pid   int
	pidfd int
	conn  *shim.Conn
	ended chan struct{} // closed when the process may be reaped
}

// exec serves one exec from its request to its exit. It holds the gate only while something happens, so that an upgrade can
// hand the session over while the process runs.
func (s *supervisor) exec(conn caller, id string, e shim.Exec, files []*os.File) {
	x, err := s.begin(conn.Conn, id, e, files)
	shim.CloseAll(files)
	if err != nil {
		s.fail(conn.Conn, err)
		return
	}
	conn.leave()
	s.attend(x)
}

// begin starts the process and answers that it has. The caller holds the gate.
func (s *supervisor) begin(conn *shim.Conn, id string, e shim.Exec, files []*os.File) (*session, error) {
	c, err := s.running(id)
	if err != nil {
		return nil, err
	}
	if c.snapshot().Hold || e.Process == nil {
		return nil, errors.New("exec: the container has no program to run things beside, or nothing to run was given")
	}
	defer s.children.Begin()()
	p := process(e.Process)
	if e.Process.Terminal {
		if len(files) != 1 {
			return nil, fmt.Errorf("exec with a terminal: %d descriptors, want 1", len(files))
		}
		p.ConsoleSocket = files[0]
	} else {
		made, err := c.connectExec(p, e, files)
		defer func() { shim.CloseAll(made) }()
		if err != nil {
			return nil, fmt.Errorf("exec in container %s: %w", id, err)
		}
	}
	pid, err := s.enter(c, p)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", id, err)
	}
	x := &session{id: id, pid: pid, conn: conn}
	if err := s.enlist(x); err != nil {
		endChild(pid)
		return nil, err
	}
	if err := reply(conn, shim.Started{PID: pid}); err != nil {
		s.log.Printf("exec in container %s: %v", id, err) // attend sees the closed connection
	}
	return x, nil
}

// enter starts a process in the container. libcontainer finds the container's namespaces by the number of its first process, which must
// not become another's meanwhile.
func (s *supervisor) enter(c *container, p *libcontainer.Process) (int, error) {
	c.entering.RLock()
	defer c.entering.RUnlock()
	if err := c.signal(0); err != nil {
		return 0, err
	}
	lc, err := s.load(c)
	if err != nil {
		return 0, err
	}
	release, err := s.alone(c, pidNamespaceOf(c.snapshot().PID))
	if err != nil {
		return 0, err
	}
	defer release()
	config := lc.Config()
	if err := ownStreams(&config, p); err != nil {
		return 0, err
	}
	var started libcontainer.Process
	err = c.pastExecve(func() error {
		started = *p
		err := lc.Run(&started)
		if err != nil && strings.Contains(err.Error(), fmt.Sprintf("failed to open /proc/%d/ns/", c.snapshot().PID)) {
			return fmt.Errorf("%w: %w", errInExecve, err) // it has not entered, and run nothing
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	pid, err := started.Pid()
	if err != nil {
		return 0, err
	}
	if err := c.signal(0); err != nil {
		endChild(pid) // the first process was not our child, and may have had its number taken
		return 0, err
	}
	return pid, nil
}

// errInExecve says that a container's first process shows nothing of itself. When a thread other than the first executes a program, as
// the programs of some languages do, the kernel shows the process as ended for a moment: without namespaces and without a root directory.
var errInExecve = errors.New("the container's first process is about to execute a program")

// execveLimit bounds the wait for a first process to come out of execve.
const execveLimit = time.Second

// pastExecve calls f, and again for as long as it returns errInExecve and the container lives.
func (c *container) pastExecve(f func() error) error {
	for end := time.Now().Add(execveLimit); ; time.Sleep(time.Millisecond) {
		if err := f(); !errors.Is(err, errInExecve) || !c.lives() || time.Now().After(end) {
			return err
		}
	}
}

// lives reports whether a thread of the first process has not ended; signals reach one that has ended until it is reaped.
func (c *container) lives() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd < 0 {
		return false
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}, 0) //nolint:gosec // descriptors are small
	return err != nil || n == 0
}

// enterLimit is how long an ended container waits for processes that are about to enter it, before its process number is given back.
const enterLimit = 2 * time.Second

// settled waits until nobody is entering the container, which does not take long as it has ended. It does not wait for ever.
func (c *container) settled() {
	for end := time.Now().Add(enterLimit); !c.entering.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return
		}
	}
	c.entering.Unlock()
}

// connectExec gives the process the client's descriptors, and the container's null device where the client has none. It returns what it
// opened, which is closed when the process has started.
func (c *container) connectExec(p *libcontainer.Process, e shim.Exec, files []*os.File) (made []*os.File, err error) {
	var use [3]*os.File
	var null *os.File
	for i, want := range [3]bool{e.Stdin, e.Stdout, e.Stderr} {
		if want && len(files) > 0 {
			use[i], files = files[0], files[1:]
			continue
		}
		if null == nil {
			null, err = c.null()
			made = append(made, null)
		}
		use[i] = null
		if err != nil && i == 0 {
			// A process may live without an input, but its output must go somewhere.
			use[0], err = nothing()
			made = append(made, use[0])
		}
		if err != nil {
			return made, err
		}
	}
	p.Stdin, p.Stdout, p.Stderr = use[0], use[1], use[2]
	return made, nil
}

// enlist watches the session's process and remembers it for an upgrade.
func (s *supervisor) enlist(x *session) error {
	x.ended = make(chan struct{})
	var err error
	if x.pidfd, err = s.watch(x.pid, func() { close(x.ended) }); err != nil {
		return err
	}
	s.mu.Lock()
	s.sessions[x] = struct{}{}
	s.mu.Unlock()
	return nil
}

// attend waits for the process's end, or for the client's, which ends the process.
func (s *supervisor) attend(x *session) {
	gone := s.closed(x.conn)
	select {
	case <-x.ended:
	case <-gone:
		_ = unix.PidfdSendSignal(x.pidfd, unix.SIGKILL, nil, 0) // it may have ended by itself
		<-x.ended
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	e := s.reap(x.pid, x.pidfd)
	_ = unix.Close(x.pidfd) // a pidfd has nothing to lose
	s.mu.Lock()
	delete(s.sessions, x)
	s.mu.Unlock()
	_ = reply(x.conn, shim.Exited{Code: e.code}) // nobody may be there any more
}

// closed is closed when the client has closed its end. Clients send nothing after their request.
func (s *supervisor) closed(conn *shim.Conn) <-chan struct{} {
	gone := make(chan struct{})
	go func() { // ends when the client closes the connection, or we do
		defer close(gone)
		_, _ = conn.Unix().Read(make([]byte, 1))
	}()
	return gone
}
