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

// exec serves one exec from its request to its exit. It does not hold upgradeLock while the process runs: an upgrade
// hands the session over.
func (s *supervisor) exec(conn caller, id string, e shim.Exec, files []*os.File) {
	x, err := s.startExec(conn.Conn, id, e, files)
	shim.CloseAll(files)
	if err != nil {
		s.fail(conn.Conn, err)
		return
	}
	conn.leave()
	s.waitSession(x)
}

// startExec starts the process and sends the first reply. The caller holds upgradeLock.
func (s *supervisor) startExec(conn *shim.Conn, id string, exec shim.Exec, files []*os.File) (*session, error) {
	container, err := s.running(id)
	if err != nil {
		return nil, err
	}
	if container.snapshot().Hold || exec.Process == nil {
		return nil, errors.New("exec: the container is a namespace holder, or the request has no process")
	}
	defer s.children.Begin()()
	p := process(exec.Process)
	if exec.Process.Terminal {
		if len(files) != 1 {
			return nil, fmt.Errorf("exec with a terminal: %d descriptors, want 1", len(files))
		}
		p.ConsoleSocket = files[0]
	} else {
		opened, err := container.connectExec(p, exec, files)
		defer func() { shim.CloseAll(opened) }()
		if err != nil {
			return nil, fmt.Errorf("exec in container %s: %w", id, err)
		}
	}
	pid, err := s.enter(container, p)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", id, err)
	}
	x := &session{id: id, pid: pid, conn: conn}
	if err := s.registerSession(x); err != nil {
		killChild(pid)
		return nil, err
	}
	if err := reply(conn, shim.Started{PID: pid}); err != nil {
		s.log.Printf("exec in container %s: %v", id, err) // waitSession sees the closed connection
	}
	return x, nil
}

// enter starts a process in the container. libcontainer finds the namespaces by the pid of the first process; entering
// keeps that pid from being reused.
func (s *supervisor) enter(ctr *container, process *libcontainer.Process) (int, error) {
	ctr.entering.RLock()
	defer ctr.entering.RUnlock()
	if err := ctr.signal(0); err != nil {
		return 0, err
	}
	lc, err := s.load(ctr)
	if err != nil {
		return 0, err
	}
	release, err := s.freezeTracers(ctr, pidNamespaceOf(ctr.snapshot().PID))
	if err != nil {
		return 0, err
	}
	defer release()
	config := lc.Config()
	if err := chownStreams(&config, process); err != nil {
		return 0, err
	}
	var started libcontainer.Process
	err = ctr.retryDuringExecve(func() error {
		started = *process
		err := lc.Run(&started)
		if err != nil && strings.Contains(err.Error(), fmt.Sprintf("failed to open /proc/%d/ns/", ctr.snapshot().PID)) {
			return fmt.Errorf("%w: %w", errInExecve, err) // nothing was started
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
	if err := ctr.signal(0); err != nil {
		killChild(pid) // an adopted first process is not our child, so its pid may have been reused
		return 0, err
	}
	return pid, nil
}

// errInExecve means that /proc does not show the namespaces and root directory of a container's first process. That
// lasts for a moment when a thread other than the first one calls execve.
var errInExecve = errors.New("the container's first process is about to execute a program")

// execveLimit bounds the retries for errInExecve.
const execveLimit = time.Second

// retryDuringExecve repeats f while it returns errInExecve and the container runs.
func (c *container) retryDuringExecve(f func() error) error {
	for end := time.Now().Add(execveLimit); ; time.Sleep(time.Millisecond) {
		if err := f(); !errors.Is(err, errInExecve) || !c.alive() || time.Now().After(end) {
			return err
		}
	}
}

// alive reports whether the first process has a running thread. Signal 0 cannot tell: it succeeds for a zombie.
func (c *container) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd < 0 {
		return false
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}, 0) // descriptors are small
	return err != nil || n == 0
}

// enterLimit bounds waitEntering.
const enterLimit = 2 * time.Second

// waitEntering waits until no process is entering the ended container, at most for enterLimit. After that its pid may
// be reused.
func (c *container) waitEntering() {
	for end := time.Now().Add(enterLimit); !c.entering.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return
		}
	}
	c.entering.Unlock()
}

// connectExec connects the process to the client's descriptors, and to the container's null device for missing ones. It
// returns the files that it opened; the caller closes them when the process has started.
func (c *container) connectExec(
	process *libcontainer.Process, e shim.Exec, files []*os.File,
) (opened []*os.File, err error) {
	var use [3]*os.File
	var null *os.File
	for i, want := range [3]bool{e.Stdin, e.Stdout, e.Stderr} {
		if want && len(files) > 0 {
			use[i] = files[0]
			files = files[1:]
			continue
		}
		if null == nil {
			null, err = c.nullDevice()
			opened = append(opened, null)
		}
		use[i] = null
		if err != nil && i == 0 {
			// Without a null device an empty pipe serves as input; missing outputs are an error.
			use[0], err = emptyInput()
			opened = append(opened, use[0])
		}
		if err != nil {
			return opened, err
		}
	}
	process.Stdin = use[0]
	process.Stdout = use[1]
	process.Stderr = use[2]
	return opened, nil
}

// registerSession watches the session's process and adds the session to those that an upgrade hands over.
func (s *supervisor) registerSession(x *session) error {
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

// waitSession waits for the exit of the process. If the client disconnects first, it kills the process.
func (s *supervisor) waitSession(x *session) {
	gone := s.clientClosed(x.conn)
	select {
	case <-x.ended:
	case <-gone:
		_ = unix.PidfdSendSignal(x.pidfd, unix.SIGKILL, nil, 0) // it may have ended by itself
		<-x.ended
	}
	s.upgradeLock.RLock()
	defer s.upgradeLock.RUnlock()
	e := s.reap(x.pid, x.pidfd)
	_ = unix.Close(x.pidfd) // a pidfd has nothing to lose
	s.mu.Lock()
	delete(s.sessions, x)
	s.mu.Unlock()
	_ = reply(x.conn, shim.Exited{Code: e.code}) // the client may have disconnected
}

// clientClosed returns a channel that is closed when the client disconnects. Clients send nothing after their request.
func (s *supervisor) clientClosed(conn *shim.Conn) <-chan struct{} {
	gone := make(chan struct{})
	go func() { // ends when the client closes the connection, or we do
		defer close(gone)
		_, _ = conn.Unix().Read(make([]byte, 1))
	}()
	return gone
}
