// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Client calls the supervisor of a directory. Make it with New. It keeps no connection open.
type Client struct {
	dir string
}

// New returns a client of the supervisor in dir. It does not connect.
func New(dir string) *Client { return &Client{dir} }

// ErrDown means that no supervisor listens.
var ErrDown = errors.New("no container supervisor is running")

func (c *Client) dial(ctx context.Context) (*Conn, error) {
	var conn *Conn
	err := WithSocket(c.dir, func(path string) error {
		var d net.Dialer
		uc, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		u, ok := uc.(*net.UnixConn)
		if !ok {
			return fmt.Errorf("dialled a %T", uc)
		}
		conn = NewConn(u)
		return nil
	})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w in %s", ErrDown, c.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to container supervisor: %w", err)
	}
	return conn, nil
}

// open sends a request and returns the connection for the replies.
func (c *Client) open(ctx context.Context, verb, id string, arg any, files ...*os.File) (*Conn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	req := Request{Verb: verb, ID: id}
	if arg != nil {
		if req.Arg, err = json.Marshal(arg); err != nil {
			_ = conn.Close() // nothing was sent
			return nil, fmt.Errorf("encode %s: %w", verb, err)
		}
	}
	if err := conn.Send(req, files...); err != nil {
		_ = conn.Close() // the send's error says more
		return nil, fmt.Errorf("%s: send to container supervisor: %w", verb, err)
	}
	return conn, nil
}

// answer receives one reply into value (nil to ignore).
func answer(conn *Conn, verb string, value any) ([]*os.File, error) {
	var rep Reply
	files, err := conn.Receive(&rep)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%s: answer of container supervisor: %w", verb, err)
	}
	if err := rep.err(); err != nil {
		CloseAll(files)
		return nil, err
	}
	if value != nil {
		if err := json.Unmarshal(rep.Value, value); err != nil {
			CloseAll(files)
			return nil, fmt.Errorf("%s: decode answer of container supervisor: %w", verb, err)
		}
	}
	return files, nil
}

func (r *Reply) err() error {
	switch r.Code {
	case "":
		return nil
	case CodeNotFound:
		return fmt.Errorf("%w: %s", ErrNotFound, r.Error)
	case CodeNotRunning:
		return fmt.Errorf("%w: %s", ErrNotRunning, r.Error)
	case CodeExists:
		return fmt.Errorf("%w: %s", ErrExists, r.Error)
	}
	return errors.New(r.Error)
}

// call sends a request and waits for its reply. When ctx ends first, the connection is closed and the outcome is
// unknown.
func (c *Client) call(ctx context.Context, verb, id string, arg, value any) error {
	conn, err := c.open(ctx, verb, id, arg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	files, err := answer(conn, verb, value)
	CloseAll(files)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w", verb, context.Cause(ctx))
	}
	return err
}

// callIdempotent is call for idempotent verbs: it repeats a call whose connection was closed without a reply. That
// happens when the supervisor is killed, and to Delete when an upgrade interrupts its wait.
func (c *Client) callIdempotent(ctx context.Context, verb, id string, arg, value any) error {
	var err error
	for pause := time.Millisecond; pause < time.Second; pause *= 2 {
		if err = c.call(ctx, verb, id, arg, value); !broken(err) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
	return err
}

// broken reports whether err means that the supervisor closed the connection without a reply.
func broken(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Hello identifies the running supervisor; ErrDown when there is none.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.callIdempotent(ctx, VerbHello, "", nil, &h)
	return h, err
}

// SupervisorPID returns the process id of the supervisor, even if it does not answer; ErrDown when there is none.
func (c *Client) SupervisorPID(ctx context.Context) (int, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	cred, err := conn.Peer()
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// Run makes and starts a container.
func (c *Client) Run(ctx context.Context, id string, r Run) (State, error) {
	var s State
	err := c.call(ctx, VerbRun, id, r, &s)
	return s, err
}

// Hold starts a holder process with a new PID namespace.
func (c *Client) Hold(ctx context.Context, id string, h Hold) (State, error) {
	var s State
	err := c.call(ctx, VerbHold, id, h, &s)
	return s, err
}

// Kill signals a container; ErrNotRunning when it has ended.
func (c *Client) Kill(ctx context.Context, id string, k Kill) error {
	return c.call(ctx, VerbKill, id, k, nil)
}

// Delete removes a container; a running one is killed first. An unknown one is not an error.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.callIdempotent(ctx, VerbDelete, id, nil, nil)
}

// List returns all containers of the supervisor.
func (c *Client) List(ctx context.Context) ([]State, error) {
	var s []State
	err := c.callIdempotent(ctx, VerbList, "", nil, &s)
	return s, err
}

// State returns one container's state; ErrNotFound when there is none.
func (c *Client) State(ctx context.Context, id string) (State, error) {
	var s State
	err := c.callIdempotent(ctx, VerbState, id, nil, &s)
	return s, err
}

// Reopen makes the supervisor reopen the container's log, after a rotation.
func (c *Client) Reopen(ctx context.Context, id string) error {
	return c.callIdempotent(ctx, VerbReopen, id, nil, nil)
}

// CloseStdin closes the container's standard input.
func (c *Client) CloseStdin(ctx context.Context, id string) error {
	return c.callIdempotent(ctx, VerbCloseIn, id, nil, nil)
}

// Update changes a running container's resources.
func (c *Client) Update(ctx context.Context, id string, r *specs.LinuxResources) error {
	return c.callIdempotent(ctx, VerbUpdate, id, Update{Resources: r}, nil)
}

// Upgrade replaces the supervisor's program by the file at path, keeping process, containers and descriptors.
func (c *Client) Upgrade(ctx context.Context, path string) error {
	return c.callIdempotent(ctx, VerbUpgrade, "", Upgrade{Path: path}, nil)
}

// Configure changes the settings of all containers, also of running ones.
func (c *Client) Configure(ctx context.Context, s Settings) error {
	return c.callIdempotent(ctx, VerbConfigure, "", s, nil)
}

// Quit ends the supervisor; it refuses while containers run.
func (c *Client) Quit(ctx context.Context) error { return c.call(ctx, VerbQuit, "", nil, nil) }

// Subscribe calls first with all states, then exit for each container that ended, in order. It returns nil when ctx
// ends, and an error when the connection is lost: subscribe again.
func (c *Client) Subscribe(ctx context.Context, first func([]State), exit func(State)) error {
	conn, err := c.open(ctx, VerbSubscribe, "", nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var all []State
	if _, err = answer(conn, VerbSubscribe, &all); err == nil {
		first(all)
	}
	for err == nil {
		var s State
		if _, err = answer(conn, VerbSubscribe, &s); err == nil {
			exit(s)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
