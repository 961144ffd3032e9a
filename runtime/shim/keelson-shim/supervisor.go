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
	"sync/atomic"
	"time"

	"github.com/opencontainers/runc/libcontainer/exeseal"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/reaper"
)

const (
	// requestLimit and replyLimit bound the time in which a client sends its request and reads a reply. Meanwhile it
	// blocks upgrades.
	requestLimit = 10 * time.Second
	replyLimit   = 10 * time.Second
	// acceptPause is the pause after a failed accept.
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
	buffers  sync.Pool    // of *[readSize]byte
	queued   atomic.Int64 // bytes that attached clients have not read yet
	quit     chan struct{}

	// upgradeLock is held for reading while a call or an exit is handled. An upgrade takes it for writing: then nothing
	// is in progress.
	upgradeLock sync.RWMutex

	// freezeMu is held while containers are frozen; see freezeTracers.
	freezeMu sync.Mutex

	// converting is held while libcontainer's list of default devices is another; see convert.
	converting sync.Mutex

	mu          sync.Mutex
	settings    shim.Settings
	containers  map[string]*container
	pidnsLocks  map[uint64]*pidnsLock // by PID namespace
	sessions    map[*session]struct{}
	subscribers map[chan shim.State]struct{} // one channel per Subscribe call
}

// supervise runs the supervisor. args is empty, or names the descriptor of the handoff of an upgrade.
func supervise(dir string, args []string) error {
	handoff, err := readHandoff(args)
	if err != nil {
		return err
	}
	if handoff == nil {
		if err := seal(dir); err != nil {
			return err
		}
	}
	logrus.SetLevel(logrus.WarnLevel) // libcontainer's logger
	logrus.SetOutput(os.Stderr)
	// Collect garbage more often than by default: for this process little memory is more important than CPU time.
	debug.SetGCPercent(30)
	// The inits of containers inherit it; they need one thread only.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return fmt.Errorf("set environment: %w", err)
	}
	s := &supervisor{
		dir:         dir,
		log:         log.New(os.Stderr, "", log.LstdFlags|log.LUTC|log.Lmicroseconds),
		quit:        make(chan struct{}),
		children:    reaper.New(),
		buffers:     sync.Pool{New: func() any { return new([readSize]byte) }},
		containers:  map[string]*container{},
		pidnsLocks:  map[uint64]*pidnsLock{},
		sessions:    map[*session]struct{}{},
		subscribers: map[chan shim.State]struct{}{},
	}
	if err := s.open(handoff); err != nil {
		return err
	}
	return s.serve(handoff)
}

// seal re-executes the program from a sealed copy in memory. Containers are started from /proc/self/exe and must not be
// able to write to it (CVE-2019-5736). Without this, libcontainer would make a copy for each container.
func seal(dir string) error {
	if exeseal.IsSelfExeCloned() {
		return nil
	}
	file, err := exeseal.CloneSelfExe(dir)
	if err != nil {
		return fmt.Errorf("seal program: %w", err)
	}
	if !exeseal.IsCloned(file) {
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			return fmt.Errorf("seal program: %w", err)
		}
		if file, err = clone(self); err != nil {
			return err
		}
	}
	if err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.Args, os.Environ()); err != nil {
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

// open sets up the supervisor, and takes over the containers of an earlier one.
func (s *supervisor) open(h *handoff) error {
	var err error
	if s.boot, err = bootID(); err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	if s.binary, err = hashFile("/proc/self/exe"); err != nil {
		return fmt.Errorf("read own program: %w", err)
	}
	// The process name of a sealed program is its descriptor number; set it for ps.
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
	if s.exits, err = newLoop(&s.upgradeLock); err != nil {
		return err
	}
	if s.output, err = newLoop(&s.upgradeLock); err != nil {
		return err
	}
	if h != nil {
		return s.restoreHandoff(h)
	}
	if s.lock, err = lockDir(s.dir); err != nil {
		return err
	}
	if s.listener, err = s.listen(); err != nil {
		return err
	}
	return s.recover()
}

// lockDir fails if another supervisor has locked the directory.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, shim.LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("another supervisor uses %s", dir)
	}
	return f, nil
}

func (s *supervisor) listen() (*os.File, error) {
	path := filepath.Join(s.dir, shim.SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	var unixListener *net.UnixListener
	err := shim.WithSocket(s.dir, func(short string) error {
		var err error
		unixListener, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = unixListener.Close() }() // File returns another descriptor
	unixListener.SetUnlinkOnClose(false)        // its address is not the real path
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("restrict socket: %w", err)
	}
	f, err := unixListener.File()
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return f, nil
}

// serve runs until Quit. It closes its standard output to tell its parent that it is listening.
func (s *supervisor) serve(h *handoff) error {
	if err := s.exits.add(fdNumber(s.listener), s.accept); err != nil {
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
			go s.waitSession(x) // ends with the session's process, or its client
		}
	} else if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return fmt.Errorf("report that the supervisor is ready: %w", err)
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

// accept accepts one client and locks upgradeLock for reading until the client is answered. So an upgrade finds a
// client either in the listener's queue, where the new program accepts it, or answered. It must not block on
// upgradeLock, because the loop that calls it holds it; while an upgrade waits for the lock, clients stay in the queue.
func (s *supervisor) accept() {
	if !s.upgradeLock.TryRLock() {
		return
	}
	fd, _, err := unix.Accept4(fdNumber(s.listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		s.upgradeLock.RUnlock()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
			s.log.Printf("accept: %v", err)
			time.Sleep(acceptPause) // out of descriptors or memory; the client stays in the queue
		}
		return
	}
	go func() { // ends with the client's call
		leave := sync.OnceFunc(s.upgradeLock.RUnlock)
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

// caller is a client connection that holds upgradeLock until leave, which may be called twice.
type caller struct {
	*shim.Conn
	leave func()
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

// publish sends an exit to the subscribers. A slow one is disconnected; it subscribes again.
func (s *supervisor) publish(st shim.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.subscribers {
		select {
		case ch <- st:
		default:
			delete(s.subscribers, ch)
			close(ch)
		}
	}
}
