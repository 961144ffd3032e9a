// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"

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
	p := process(e.Process)
	if e.Process.Terminal {
		if len(files) != 1 {
			return nil, fmt.Errorf("exec with a terminal: %d descriptors, want 1", len(files))
		}
		p.ConsoleSocket = files[0]
	} else {
		rest := files
		take := func(want bool) *os.File {
			if !want || len(rest) == 0 {
				return nil
			}
			f := rest[0]
			rest = rest[1:]
			return f
		}
		// A nil *os.File in an interface would not be nil.
		if f := take(e.Stdin); f != nil {
			p.Stdin = f
		}
		if f := take(e.Stdout); f != nil {
			p.Stdout = f
		}
		if f := take(e.Stderr); f != nil {
			p.Stderr = f
		}
	}
	lc, err := s.load(c)
	if err != nil {
		return nil, err
	}
	if err := lc.Run(p); err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", id, err)
	}
	pid, err := p.Pid()
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", id, err)
	}
	x := &session{id: id, pid: pid, conn: conn}
	if err := s.enlist(x); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // our child: its pid cannot mean another process
		_, _ = unix.Wait4(pid, nil, 0, nil)
		return nil, err
	}
	if err := reply(conn, shim.Started{PID: pid}); err != nil {
		s.log.Printf("exec in container %s: %v", id, err) // attend sees the closed connection
	}
	return x, nil
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
	e := reap(x.pid, x.pidfd)
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
