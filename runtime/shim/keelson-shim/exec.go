// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/process"
	"keelson/runtime/shim/reaper"
	"keelson/runtime/shim/streams"
)

// session is a process that runs in a container for one connection.
type session struct {
	id      string // of the container
	conn    *shim.Conn
	process *process.Process
	ended   chan struct{} // closed when the process may be reaped
}

// execs runs processes in containers. It does not hold gate while a process runs: an upgrade hands the sessions over.
type execs struct {
	table    *table
	engine   *engine
	tracers  *tracers
	children *reaper.Reaper
	watcher  *process.Watcher
	gate     *sync.RWMutex
	log      *log.Logger

	mu       sync.Mutex
	sessions map[*session]struct{}
}

// serve serves one exec from its request to its exit.
func (e *execs) serve(conn caller, id string, exec shim.Exec, files []*os.File) {
	x, err := e.start(conn.Conn, id, exec, files)
	shim.CloseAll(files)
	if err != nil {
		conn.fail(err)
		return
	}
	conn.leave()
	e.wait(x)
}

// start starts the process and sends the first reply. The caller holds gate.
func (e *execs) start(conn *shim.Conn, id string, exec shim.Exec, files []*os.File) (*session, error) {
	container, err := e.table.running(id)
	if err != nil {
		return nil, err
	}
	if container.snapshot().Hold || exec.Process == nil {
		return nil, errors.New("exec: the container is a namespace holder, or the request has no process")
	}
	defer e.children.Begin()()
	p := processOf(exec.Process)
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
	pid, err := e.enter(container, p)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", id, err)
	}
	x, err := e.add(id, pid, conn)
	if err != nil {
		killChild(pid)
		return nil, err
	}
	if err := reply(conn, shim.Started{PID: pid}); err != nil {
		e.log.Printf("exec in container %s: %v", id, err) // wait sees the closed connection
	}
	return x, nil
}

// enter starts a process in the container. libcontainer finds the namespaces by the pid of the first process; entering
// keeps that pid from being reused.
func (e *execs) enter(ctr *container, process *libcontainer.Process) (int, error) {
	ctr.entering.RLock()
	defer ctr.entering.RUnlock()
	if err := ctr.signal(0); err != nil {
		return 0, err
	}
	lc, err := e.engine.load(ctr.state.ID)
	if err != nil {
		return 0, err
	}
	release, err := e.tracers.freeze(ctr, pidNamespaceOf(ctr.snapshot().PID))
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
			use[0], err = streams.EmptyInput()
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

// add watches a session's process, and adds the session to those that an upgrade hands over.
func (e *execs) add(id string, pid int, conn *shim.Conn) (*session, error) {
	x := &session{id: id, conn: conn, ended: make(chan struct{})}
	var err error
	if x.process, err = e.watcher.Watch(pid, func() { close(x.ended) }); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.sessions[x] = struct{}{}
	e.mu.Unlock()
	return x, nil
}

// all returns the sessions.
func (e *execs) all() []*session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.sessions))
}

// wait waits for the exit of the process. If the client disconnects first, it kills the process.
func (e *execs) wait(x *session) {
	gone := clientClosed(x.conn)
	select {
	case <-x.ended:
	case <-gone:
		_ = x.process.Signal(unix.SIGKILL) // it may have ended by itself
		<-x.ended
	}
	e.gate.RLock()
	defer e.gate.RUnlock()
	exit := x.process.Reap()
	e.mu.Lock()
	delete(e.sessions, x)
	e.mu.Unlock()
	_ = reply(x.conn, shim.Exited{Code: exit.Code}) // the client may have disconnected
}
