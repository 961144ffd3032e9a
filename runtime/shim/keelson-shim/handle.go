// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"keelson/runtime/shim"
)

// handle serves one connection, which is one call. The caller holds upgradeLock, so no upgrade can lose the call or its
// reply.
func (s *supervisor) handle(conn caller) error {
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
		return serveStreaming(s, conn, req, files, s.exec)
	case shim.VerbAttach:
		return serveStreaming(s, conn, req, files, s.attach)
	}
	shim.CloseAll(files)
	switch req.Verb { // verbs that release upgradeLock while they wait
	case shim.VerbSubscribe:
		s.subscribe(conn)
		return nil
	case shim.VerbUpgrade:
		s.upgrade(conn, req)
		return nil
	case shim.VerbDelete:
		if err := s.remove(req.ID, s.clientClosed(conn.Conn)); err != nil {
			s.fail(conn.Conn, err)
			return nil
		}
		return reply(conn.Conn, nil)
	case shim.VerbQuit:
		s.quitIfIdle(conn)
		return nil
	}
	value, err := s.answer(req)
	if err != nil {
		s.fail(conn.Conn, err)
		return nil
	}
	return reply(conn.Conn, value)
}

// quitIfIdle ends the supervisor if no container runs. It holds upgradeLock, so none can start after the check.
func (s *supervisor) quitIfIdle(conn caller) {
	conn.leave()
	s.upgradeLock.Lock()
	if err := s.mayQuit(); err != nil {
		s.upgradeLock.Unlock()
		s.fail(conn.Conn, err)
		return
	}
	if err := reply(conn.Conn, nil); err != nil {
		s.log.Printf("quit: %v", err)
	}
	close(s.quit) // upgradeLock is not released
}

// serveStreaming decodes the argument of a verb that owns the connection from then on, and calls it.
func serveStreaming[A any](s *supervisor, conn caller, req shim.Request, files []*os.File, verb func(
	caller, string, A, []*os.File,
),
) error {
	var arg A
	if err := json.Unmarshal(req.Arg, &arg); err != nil {
		shim.CloseAll(files)
		s.fail(conn.Conn, fmt.Errorf("decode %s: %w", req.Verb, err))
		return nil
	}
	verb(conn, req.ID, arg, files)
	return nil
}

// answer serves the verbs that have one reply.
func (s *supervisor) answer(req shim.Request) (any, error) {
	switch req.Verb {
	case shim.VerbHello:
		return shim.Hello{Protocol: shim.Protocol, PID: os.Getpid(), Binary: s.binary}, nil
	case shim.VerbRun:
		return callForState(req, s.run)
	case shim.VerbHold:
		return callForState(req, s.hold)
	case shim.VerbKill:
		return call(req, s.kill)
	case shim.VerbUpdate:
		return call(req, s.update)
	case shim.VerbConfigure:
		return call(req, s.configure)
	case shim.VerbReopen:
		return nil, s.reopen(req.ID)
	case shim.VerbCloseIn:
		c, err := s.running(req.ID)
		if err == nil {
			c.closeIn()
		}
		return nil, err
	case shim.VerbList:
		return s.list(), nil
	case shim.VerbState:
		c, err := s.find(req.ID)
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

// list returns the states of all containers, sorted by id.
func (s *supervisor) list() []shim.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]shim.State, 0, len(s.containers))
	for _, c := range s.containers {
		c.mu.Lock()
		if !c.starting {
			all = append(all, c.state)
		}
		c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b shim.State) int { return strings.Compare(a.ID, b.ID) })
	return all
}

func (s *supervisor) mayQuit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.containers {
		c.mu.Lock()
		busy := c.starting || c.state.Running()
		c.mu.Unlock()
		if busy {
			return fmt.Errorf("quit: container %s is running", id)
		}
	}
	return nil
}

// subscribe sends all states and then every exit after them, without a gap.
func (s *supervisor) subscribe(conn caller) {
	ch := make(chan shim.State, 1024)
	s.mu.Lock()
	s.subscribers[ch] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.subscribers, ch)
		s.mu.Unlock()
	}()
	if err := reply(conn.Conn, s.list()); err != nil {
		return
	}
	conn.leave()
	gone := s.clientClosed(conn.Conn)
	for {
		select {
		case st, ok := <-ch:
			if !ok || reply(conn.Conn, st) != nil {
				return
			}
		case <-gone:
			return
		}
	}
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
func (s *supervisor) fail(conn *shim.Conn, err error) {
	r := shim.Reply{Error: err.Error(), Code: shim.CodeOther}
	switch {
	case errors.Is(err, shim.ErrNotFound):
		r.Code = shim.CodeNotFound
	case errors.Is(err, shim.ErrNotRunning):
		r.Code = shim.CodeNotRunning
	case errors.Is(err, shim.ErrExists):
		r.Code = shim.CodeExists
	}
	if serr := send(conn, r); serr != nil {
		s.log.Printf("answer %q: %v", r.Error, serr)
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
