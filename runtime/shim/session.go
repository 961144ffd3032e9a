// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"os"
)

// Session is a running exec or attach. Close it; for an exec that kills the process if it still runs.
type Session struct {
	conn *Conn
	verb string
	// PID of the process, for an exec.
	PID int
	// Stdin is the write end of an attached container's standard input: a FIFO, or the terminal. Nil when not
	// requested. The caller closes it.
	Stdin *os.File
	// Terminal: Stdin is a terminal, whose size may be set.
	Terminal bool
}

// Exec starts a process. For files see type Exec; the caller closes them after Exec has returned.
func (c *Client) Exec(ctx context.Context, id string, e Exec, files ...*os.File) (*Session, error) {
	conn, err := c.open(ctx, VerbExec, id, e, files...)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var st Started
	if _, err := answer(conn, VerbExec, &st); err != nil {
		_ = conn.Close() // the reply's error says more
		return nil, err
	}
	return &Session{conn: conn, verb: VerbExec, PID: st.PID}, nil
}

// Attach connects to a container's streams. For files see type Attach; the caller closes them after Attach has
// returned.
func (c *Client) Attach(ctx context.Context, id string, a Attach, files ...*os.File) (*Session, error) {
	conn, err := c.open(ctx, VerbAttach, id, a, files...)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var at Attached
	fds, err := answer(conn, VerbAttach, &at)
	if err != nil {
		_ = conn.Close() // the reply's error says more
		return nil, err
	}
	s := &Session{conn: conn, verb: VerbAttach, Terminal: at.Terminal}
	if len(fds) > 0 {
		s.Stdin = fds[0]
		CloseAll(fds[1:])
	}
	return s, nil
}

// Wait returns the exit code of the exec's process, or of the attached container. When ctx ends first it returns ctx's
// cause and the session is closed.
func (s *Session) Wait(ctx context.Context) (int, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	var e Exited
	if _, err := answer(s.conn, s.verb, &e); err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return 0, err
	}
	return e.Code, nil
}

// Close ends the session.
func (s *Session) Close() error { return s.conn.Close() }
