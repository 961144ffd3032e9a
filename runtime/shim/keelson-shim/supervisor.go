// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/opencontainers/runc/libcontainer/exeseal"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/epoll"
	"keelson/runtime/shim/process"
	"keelson/runtime/shim/reaper"
	"keelson/runtime/shim/streams"
)

// supervisor owns the node's containers: it has the parts, and what happens to a container as a whole.
type supervisor struct {
	dir      string
	boot     string
	binary   string // hash of this program
	log      *log.Logger
	listener *os.File // a listening socket that never blocks
	lock     *os.File
	quit     chan struct{}

	// gate is held for reading while a call or an exit is handled. An upgrade takes it for writing: then nothing is in
	// progress.
	gate *sync.RWMutex

	exits    *epoll.Loop // of exits and connections
	copies   *epoll.Loop // of output
	children *reaper.Reaper
	watcher  *process.Watcher
	output   *streams.Copier
	table    *table
	engine   *engine
	tracers  *tracers
	execs    *execs
	feed     *feed
	settings *settings
}

// newSupervisor makes the parts. It takes over nothing.
func newSupervisor(dir string, log *log.Logger) (*supervisor, error) {
	gate := &sync.RWMutex{}
	exits, err := epoll.New(gate)
	if err != nil {
		return nil, err
	}
	copies, err := epoll.New(gate)
	if err != nil {
		return nil, err
	}
	children := reaper.New()
	watcher := process.New(children, exits)
	all := &table{dir: dir, log: log, byID: map[string]*container{}}
	engine := &engine{dir: filepath.Join(dir, "libcontainer"), log: log}
	tracers := &tracers{
		table:    all,
		engine:   engine,
		children: children,
		log:      log,
		locks:    map[uint64]*pidnsLock{},
	}
	return &supervisor{
		dir:      dir,
		log:      log,
		quit:     make(chan struct{}),
		gate:     gate,
		exits:    exits,
		copies:   copies,
		children: children,
		watcher:  watcher,
		output:   streams.NewCopier(copies, log),
		table:    all,
		engine:   engine,
		tracers:  tracers,
		execs: &execs{
			table:    all,
			engine:   engine,
			tracers:  tracers,
			children: children,
			watcher:  watcher,
			gate:     gate,
			log:      log,
			sessions: map[*session]struct{}{},
		},
		feed:     &feed{subscribers: map[chan shim.State]struct{}{}},
		settings: &settings{path: filepath.Join(dir, shim.SettingsName)},
	}, nil
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
	s, err := newSupervisor(dir, log.New(os.Stderr, "", log.LstdFlags|log.LUTC|log.Lmicroseconds))
	if err != nil {
		return err
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
	if err := s.settings.load(); err != nil {
		s.log.Print(err)
	}
	if h != nil {
		return s.restoreHandoff(h)
	}
	if s.lock, err = lockDir(s.dir); err != nil {
		return err
	}
	if s.listener, err = listen(s.dir); err != nil {
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

func listen(dir string) (*os.File, error) {
	path := filepath.Join(dir, shim.SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	var unixListener *net.UnixListener
	err := shim.WithSocket(dir, func(short string) error {
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

// serve runs until Quit. It closes its standard output to signal to its parent that it is listening.
func (s *supervisor) serve(h *handoff) error {
	calls := &server{
		verbs:    s,
		listener: fdNumber(s.listener),
		gate:     s.gate,
		log:      s.log,
	}
	if err := s.exits.Add(calls.listener, calls.accept); err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- s.exits.Run() }()  // ends with the process
	go func() { failed <- s.copies.Run() }() // ends with the process
	if err := s.children.Run(); err != nil {
		return err
	}
	if h != nil {
		for _, x := range h.adopted {
			go s.execs.wait(x) // ends with the session's process, or its client
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

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
