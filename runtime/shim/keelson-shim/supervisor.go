// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/opencontainers/runc/libcontainer/exeseal"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/reaper"
)

const (
	// askLimit is how long a client may take to send its request, and replyLimit to take an answer: while it does, it holds up upgrades.
	askLimit   = 10 * time.Second
	replyLimit = 10 * time.Second
	// acceptPause lets descriptors come free.
	acceptPause = 10 * time.Millisecond
)

// supervisor owns the node's containers.
type supervisor struct {
	dir      string
	boot     string
	binary   string // hash of this program
	log      *log.Logger
	listener *os.File // a listening socket that never blocks
	lock     *os.File
	exits    *loop
	output   *loop
	children *reaper.Reaper
	buffers  sync.Pool // of *[readSize]byte
	quit     chan struct{}

	// gate is held for reading by whoever is in the middle of something. An upgrade takes it for writing: then every container is at rest.
	gate sync.RWMutex

	// entry is held while containers are frozen so that a process can enter another; see alone.
	entry sync.Mutex

	mu         sync.Mutex
	settings   shim.Settings
	containers map[string]*container
	doors      map[uint64]*door // by PID namespace
	sessions   map[*session]struct{}
	news       map[chan shim.State]struct{} // subscribers
}

// supervise is the life of the supervisor. args is empty, or says which descriptor holds the state that an earlier program hands over.
func supervise(dir string, args []string) error {
	h, err := takeOver(args)
	if err != nil {
		return err
	}
	if h == nil {
		if err := seal(dir); err != nil {
			return err
		}
	}
	logrus.SetLevel(logrus.WarnLevel) // libcontainer's logger
	logrus.SetOutput(os.Stderr)
	// Memory that garbage would take matters more here than the time to collect it: this process does little and lives long.
	debug.SetGCPercent(30)
	// Containers' inits inherit this; they run on one thread.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return fmt.Errorf("set environment: %w", err)
	}
	s := &supervisor{
		dir: dir, log: log.New(os.Stderr, "", log.LstdFlags|log.LUTC|log.Lmicroseconds), quit: make(chan struct{}),
		children:   reaper.New(),
		buffers:    sync.Pool{New: func() any { return new([readSize]byte) }},
		containers: map[string]*container{}, doors: map[uint64]*door{}, sessions: map[*session]struct{}{}, news: map[chan shim.State]struct{}{},
	}
	if err := s.open(h); err != nil {
		return err
	}
	return s.serve(h)
}

// seal re-executes the program from a sealed copy in memory. Containers start from /proc/self/exe, which they must not be able to
// write to; libcontainer would make such a copy for each of them.
func seal(dir string) error {
	if exeseal.IsSelfExeCloned() {
		return nil
	}
	f, err := exeseal.CloneSelfExe(dir)
	if err != nil {
		return fmt.Errorf("seal program: %w", err)
	}
	if !exeseal.IsCloned(f) {
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			return fmt.Errorf("seal program: %w", err)
		}
		if f, err = clone(self); err != nil {
			return err
		}
	}
	if err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.Args, os.Environ()); err != nil {
		return fmt.Errorf("execute sealed program: %w", err)
	}
	return nil
}

func clone(program *os.File) (*os.File, error) {
	fi, err := program.Stat()
	if err != nil {
		return nil, fmt.Errorf("copy program: %w", err)
	}
	f, err := exeseal.CloneBinary(program, fi.Size(), shim.BinaryName, "/")
	if err != nil {
		return nil, fmt.Errorf("copy program: %w", err)
	}
	return f, nil
}

// open gets everything the supervisor works with.
func (s *supervisor) open(h *handoff) error {
	var err error
	if s.boot, err = bootID(); err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	if s.binary, err = hashFile("/proc/self/exe"); err != nil {
		return fmt.Errorf("read own program: %w", err)
	}
	// /proc/self/exe of a sealed program is named after a descriptor; ps should show a name.
	name := append([]byte(shim.BinaryName), 0)
	if err := setName(name); err != nil {
		return err
	}
	for _, d := range []string{shim.ContainersDir, shim.EmptyDir, "libcontainer"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	s.loadSettings()
	if s.exits, err = newLoop(&s.gate); err != nil {
		return err
	}
	if s.output, err = newLoop(&s.gate); err != nil {
		return err
	}
	if h != nil {
		return s.inherit(h)
	}
	if s.lock, err = lockDir(s.dir); err != nil {
		return err
	}
	if s.listener, err = s.listen(); err != nil {
		return err
	}
	return s.recover()
}

// lockDir makes sure that a directory has one supervisor.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, shim.LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("another supervisor works in %s", dir)
	}
	return f, nil
}

func (s *supervisor) listen() (*os.File, error) {
	path := filepath.Join(s.dir, shim.SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	var l *net.UnixListener
	err := shim.WithSocket(s.dir, func(short string) error {
		var err error
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = l.Close() }() // File's is another descriptor
	l.SetUnlinkOnClose(false)        // the address it remembers is a descriptor's
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("restrict socket: %w", err)
	}
	f, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return f, nil
}

// serve runs until Quit. It tells whoever started it that it listens by closing its standard output.
func (s *supervisor) serve(h *handoff) error {
	if err := s.exits.add(number(s.listener), s.accept); err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- s.exits.run() }()  // ends with the process
	go func() { failed <- s.output.run() }() // ends with the process
	if err := s.children.Run(); err != nil {
		return err
	}
	if h != nil {
		for _, x := range h.adopted {
			go s.attend(x) // ends with the process it attends, or its client
		}
	} else if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return fmt.Errorf("tell that the supervisor is ready: %w", err)
	}
	if err := redirectStdout(); err != nil {
		return err
	}
	s.log.Printf("supervisor %d ready, program %.12s", os.Getpid(), s.binary)
	select {
	case err := <-failed:
		return err
	case <-s.quit:
		return nil
	}
}

// accept takes one client from the listener's queue, and with it a place in the gate, which the call keeps until it is answered. So
// an upgrade finds a client either still in the queue, where the next program finds it, or served. It runs on a loop: it must not
// wait for the gate, which the loop holds itself; while an upgrade waits for the gate, clients stay in the queue.
func (s *supervisor) accept() {
	if !s.gate.TryRLock() {
		return
	}
	fd, _, err := unix.Accept4(number(s.listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		s.gate.RUnlock()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
			s.log.Printf("accept: %v", err)
			time.Sleep(acceptPause) // no descriptors or no memory: the client is still there when there are
		}
		return
	}
	go func() { // ends when the client's call does
		leave := sync.OnceFunc(s.gate.RUnlock)
		defer leave()
		uc, err := unixConn(fd)
		if err == nil {
			err = s.handle(caller{shim.NewConn(uc), leave})
			_ = uc.Close()
		}
		if err != nil && !errors.Is(err, io.EOF) {
			s.log.Printf("connection: %v", err)
		}
	}()
}

// caller is a client whose call holds the gate until leave, which may be called twice.
type caller struct {
	*shim.Conn
	leave func()
}

// unixConn takes over the descriptor of a connection.
func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	defer func() { _ = f.Close() }() // FileConn has its own
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

// publish tells subscribers of an exit. One that does not keep up loses its connection and asks anew.
func (s *supervisor) publish(st shim.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.news {
		select {
		case ch <- st:
		default:
			delete(s.news, ch)
			close(ch)
		}
	}
}
