// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

const (
	// requestLimit and replyLimit bound the time in which a client sends its request and reads a reply. Meanwhile it
	// blocks upgrades.
	requestLimit = 10 * time.Second
	replyLimit   = 10 * time.Second
	// acceptPause is the pause after a failed accept.
	acceptPause = 10 * time.Millisecond
)

// server speaks the protocol of package shim: a connection is one call of a verb.
type server struct {
	verbs    *supervisor
	listener int // a listening socket that never blocks
	gate     *sync.RWMutex
	log      *log.Logger
}

// accept accepts one client and locks gate for reading until the client is answered. So an upgrade finds a
// client either in the listener's queue, where the new program accepts it, or answered. It must not block on
// gate, because the loop that calls it holds it; while an upgrade waits for the lock, clients stay in the queue.
func (s *server) accept() {
	if !s.gate.TryRLock() {
		return
	}
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		s.gate.RUnlock()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
			s.log.Printf("accept: %v", err)
			time.Sleep(acceptPause) // out of descriptors or memory; the client stays in the queue
		}
		return
	}
	go func() { // ends with the client's call
		leave := sync.OnceFunc(s.gate.RUnlock)
		defer leave()
		uc, err := unixConn(fd)
		if err == nil {
			err = s.handle(caller{shim.NewConn(uc), leave, s.log})
			_ = uc.Close()
		}
		if err != nil && !errors.Is(err, io.EOF) {
			s.log.Printf("connection: %v", err)
		}
	}()
}

// caller is a client connection that holds gate until leave, which may be called twice.
type caller struct {
	*shim.Conn
	leave func()
	log   *log.Logger
}

// unixConn makes a connection of a descriptor, and owns it from then on.
func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	defer func() { _ = f.Close() }() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close() // nothing was sent
		return nil, fmt.Errorf("it is a %T", c)
	}
	return uc, nil
}

// handle serves one connection, which is one call. The caller holds gate, so no upgrade can lose the call or its
// reply.
func (s *server) handle(conn caller) error {
	if err := checkPeer(conn.Conn); err != nil {
		return err
	}
	if err := conn.Unix().SetReadDeadline(time.Now().Add(requestLimit)); err != nil {
		return fmt.Errorf("receive request: %w", err)
	}
	var req shim.Request
	files, err := conn.Receive(&req)
	if err != nil {
		return err
	}
	if err := conn.Unix().SetReadDeadline(time.Time{}); err != nil {
		shim.CloseAll(files)
		return fmt.Errorf("receive request: %w", err)
	}
	switch req.Verb { // verbs with several replies and descriptors
	case shim.VerbExec:
		return serveStreaming(conn, req, files, s.verbs.execs.serve)
	case shim.VerbAttach:
		return serveStreaming(conn, req, files, s.attach)
	}
	shim.CloseAll(files)
	switch req.Verb { // verbs that release gate while they wait
	case shim.VerbSubscribe:
		s.subscribe(conn)
		return nil
	case shim.VerbUpgrade:
		s.verbs.upgrade(conn, req)
		return nil
	case shim.VerbDelete:
		if err := s.verbs.remove(req.ID, clientClosed(conn.Conn)); err != nil {
			conn.fail(err)
			return nil
		}
		return reply(conn.Conn, nil)
	case shim.VerbQuit:
		s.quitIfIdle(conn)
		return nil
	}
	value, err := s.answer(req)
	if err != nil {
		conn.fail(err)
		return nil
	}
	return reply(conn.Conn, value)
}

// quitIfIdle ends the supervisor if no container runs. It holds gate, so none can start after the check.
func (s *server) quitIfIdle(conn caller) {
	conn.leave()
	s.gate.Lock()
	if err := s.verbs.table.idle(); err != nil {
		s.gate.Unlock()
		conn.fail(err)
		return
	}
	if err := reply(conn.Conn, nil); err != nil {
		s.log.Printf("quit: %v", err)
	}
	close(s.verbs.quit) // gate is not released
}

// serveStreaming decodes the argument of a verb that owns the connection from then on, and calls it.
func serveStreaming[A any](conn caller, req shim.Request, files []*os.File, verb func(
	caller, string, A, []*os.File,
),
) error {
	var arg A
	if err := json.Unmarshal(req.Arg, &arg); err != nil {
		shim.CloseAll(files)
		conn.fail(fmt.Errorf("decode %s: %w", req.Verb, err))
		return nil
	}
	verb(conn, req.ID, arg, files)
	return nil
}

// attach serves one attached client until it disconnects or the container ends.
func (s *server) attach(conn caller, id string, a shim.Attach, files []*os.File) {
	container, err := s.verbs.table.running(id)
	if err == nil && container.io == nil {
		err = errors.New("attach: the container has no streams")
	}
	var detach func()
	if err == nil {
		detach, err = container.io.Attach(a, container.snapshot().Terminal, files, func(
			at shim.Attached, pass ...*os.File,
		) error {
			return replyWith(conn.Conn, at, pass...)
		})
	}
	if err != nil {
		shim.CloseAll(files)
		conn.fail(err)
		return
	}
	conn.leave()
	select {
	case <-container.ended:
		_ = reply(conn.Conn, shim.Exited{Code: container.snapshot().ExitCode}) // the client may have disconnected
	case <-clientClosed(conn.Conn):
		detach()
		if a.Stdin && container.snapshot().StdinOnce {
			container.closeIn()
		}
	}
}

// answer serves the verbs that have one reply.
func (s *server) answer(req shim.Request) (any, error) {
	switch req.Verb {
	case shim.VerbHello:
		return shim.Hello{Protocol: shim.Protocol, PID: os.Getpid(), Binary: s.verbs.binary}, nil
	case shim.VerbRun:
		return callForState(req, s.verbs.run)
	case shim.VerbHold:
		return callForState(req, s.verbs.hold)
	case shim.VerbKill:
		return call(req, s.verbs.kill)
	case shim.VerbUpdate:
		return call(req, s.verbs.update)
	case shim.VerbConfigure:
		return call(req, s.verbs.configure)
	case shim.VerbReopen:
		return nil, s.verbs.reopen(req.ID)
	case shim.VerbCloseIn:
		c, err := s.verbs.table.running(req.ID)
		if err == nil {
			c.closeIn()
		}
		return nil, err
	case shim.VerbList:
		return s.verbs.table.list(), nil
	case shim.VerbState:
		c, err := s.verbs.table.find(req.ID)
		if err != nil {
			return nil, err
		}
		return c.snapshot(), nil
	}
	return nil, fmt.Errorf("unknown verb %q", req.Verb)
}

func callForState[A any](req shim.Request, verb func(string, A) (*container, error)) (any, error) {
	var arg A
	if err := json.Unmarshal(req.Arg, &arg); err != nil {
		return nil, fmt.Errorf("decode %s: %w", req.Verb, err)
	}
	c, err := verb(req.ID, arg)
	if err != nil {
		return nil, err
	}
	return c.snapshot(), nil
}

func call[A any](req shim.Request, verb func(string, A) error) (any, error) {
	var arg A
	if err := json.Unmarshal(req.Arg, &arg); err != nil {
		return nil, fmt.Errorf("decode %s: %w", req.Verb, err)
	}
	return nil, verb(req.ID, arg)
}

// subscribe sends all states and then every exit after them, without a gap.
func (s *server) subscribe(conn caller) {
	exits, end := s.verbs.feed.subscribe()
	defer end()
	if err := reply(conn.Conn, s.verbs.table.list()); err != nil {
		return
	}
	conn.leave()
	gone := clientClosed(conn.Conn)
	for {
		select {
		case st, ok := <-exits:
			if !ok || reply(conn.Conn, st) != nil {
				return
			}
		case <-gone:
			return
		}
	}
}

// clientClosed returns a channel that is closed when the client disconnects. Clients send nothing after their request.
func clientClosed(conn *shim.Conn) <-chan struct{} {
	gone := make(chan struct{})
	go func() { // ends when the client closes the connection, or we do
		defer close(gone)
		_, _ = conn.Unix().Read(make([]byte, 1))
	}()
	return gone
}

func reply(conn *shim.Conn, value any) error { return replyWith(conn, value) }

func replyWith(conn *shim.Conn, value any, files ...*os.File) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return send(conn, shim.Reply{Value: body}, files...)
}

// send sends a reply. It fails when the client does not read it within replyLimit.
func send(conn *shim.Conn, r shim.Reply, files ...*os.File) error {
	if err := conn.Unix().SetWriteDeadline(time.Now().Add(replyLimit)); err != nil {
		return err
	}
	return conn.Send(r, files...)
}

// fail replies with an error.
func (c caller) fail(err error) {
	r := shim.Reply{Error: err.Error(), Code: shim.CodeOther}
	switch {
	case errors.Is(err, shim.ErrNotFound):
		r.Code = shim.CodeNotFound
	case errors.Is(err, shim.ErrNotRunning):
		r.Code = shim.CodeNotRunning
	case errors.Is(err, shim.ErrExists):
		r.Code = shim.CodeExists
	}
	if serr := send(c.Conn, r); serr != nil {
		c.log.Printf("answer %q: %v", r.Error, serr)
	}
}

// checkPeer accepts only clients of the user that the supervisor runs as.
func checkPeer(conn *shim.Conn) error {
	cred, err := conn.Peer()
	if err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d of user %d is not allowed to connect", cred.Pid, cred.Uid)
	}
	return nil
}
