// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package streams has the standard streams of containers: FIFOs or a terminal, the log that their output goes to, and
// the clients that are attached to them. The supervisor (keelson-shim) uses it.
//
// Invariants:
//  1. Both sides open the FIFOs for reading and writing: a container gets no EPIPE when the supervisor dies, and a new
//     supervisor reads what is in the FIFOs.
//  2. Output goes to the log first. A client that does not read is disconnected; it never blocks the container.
//  3. Output that clients have not read yet is bounded, for each client and for all together.
package streams

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/logrotate"
	"keelson/runtime/shim"
	"keelson/runtime/shim/epoll"
	"keelson/runtime/shim/logfile"
)

// readSize is a FIFO's capacity.
const readSize = 64 << 10

// Copier copies the output of all containers.
type Copier struct {
	loop    *epoll.Loop
	errors  *log.Logger
	buffers sync.Pool    // of *[readSize]byte
	queued  atomic.Int64 // bytes that attached clients have not read yet
}

// NewCopier returns a Copier that reads on the loop output, and logs errors.
func NewCopier(output *epoll.Loop, errors *log.Logger) *Copier {
	return &Copier{loop: output, errors: errors, buffers: sync.Pool{New: func() any { return new([readSize]byte) }}}
}

// Streams are one container's. With a terminal, in and out are the terminal.
type Streams struct {
	copier *Copier
	dir    string   // the container's
	in     *os.File // write end of standard input; nil when the container has none
	// out are the read ends by logfile.Stream; with a terminal only the first.
	out [2]*os.File

	mu    sync.Mutex // guards the fields below; the loop holds it while it copies
	log   *logfile.Writer
	sinks []*sink
}

// New returns the streams of the container in dir, which write to log, and which have no descriptors yet. Close closes
// the log.
func (c *Copier) New(dir string, log *logfile.Writer) *Streams {
	return &Streams{copier: c, dir: dir, log: log}
}

// MakeFIFOs makes and opens FIFOs, and returns the container's ends: stdin, stdout, stderr. They are blocking, as
// programs expect. Without stdin the input is the host's null device if libcontainer will replace it by the container's
// (ownDev), else an empty pipe.
func (s *Streams) MakeFIFOs(stdin, ownDev bool) (ends [3]*os.File, err error) {
	names := []string{"stdout", "stderr"}
	if stdin {
		names = append(names, "stdin")
	}
	for _, n := range names {
		if err := unix.Mkfifo(filepath.Join(s.dir, n), 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
			return ends, fmt.Errorf("make fifo: %w", err)
		}
	}
	if err := s.OpenFIFOs(stdin); err != nil {
		return ends, err
	}
	if ends, err = s.childEnds(stdin, ownDev); err != nil || !stdin {
		return ends, err
	}
	// Reopen it for writing only, so that the container reads end of file when it is closed.
	w, err := openRaw(filepath.Join(s.dir, "stdin"), unix.O_WRONLY|unix.O_NONBLOCK)
	if err != nil {
		shim.CloseAll(ends[:])
		return ends, err
	}
	_ = s.in.Close()
	s.in = w
	return ends, nil
}

// OpenFIFOs opens the supervisor's side of the FIFOs.
func (s *Streams) OpenFIFOs(stdin bool) (err error) {
	for i, name := range [...]string{"stdout", "stderr"} {
		if s.out[i], err = openRaw(filepath.Join(s.dir, name), unix.O_RDWR|unix.O_NONBLOCK); err != nil {
			return err
		}
	}
	if stdin {
		s.in, err = openRaw(filepath.Join(s.dir, "stdin"), unix.O_RDWR|unix.O_NONBLOCK)
	}
	return err
}

// UseTerminal makes a terminal the streams.
func (s *Streams) UseTerminal(terminal *os.File) error {
	s.out[0] = terminal
	fd, err := unix.FcntlInt(terminal.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	s.in = RawFile(fd, terminal.Name())
	return nil
}

// openRaw opens a file without Go's poller: readiness is for the epoll loop.
func openRaw(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return RawFile(fd, path), nil
}

// RawFile wraps a descriptor that Go treats as blocking: reads are plain system calls, which may return EAGAIN.
func RawFile(fd int, name string) *os.File {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_NONBLOCK != 0 {
		// os.NewFile registers a non-blocking descriptor with the poller.
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK) // F_GETFL has succeeded
		defer func() { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags) }()
	}
	return os.NewFile(uintptr(fd), name)
}

func (s *Streams) childEnds(stdin, ownDev bool) ([3]*os.File, error) {
	var ends [3]*os.File
	var err error
	switch {
	case stdin:
		ends[0], err = os.OpenFile(filepath.Join(s.dir, "stdin"), os.O_RDONLY, 0)
	case ownDev:
		ends[0], err = os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	default:
		ends[0], err = EmptyInput()
	}
	if err == nil {
		ends[1], err = os.OpenFile(filepath.Join(s.dir, "stdout"), os.O_RDWR, 0)
	}
	if err == nil {
		ends[2], err = os.OpenFile(filepath.Join(s.dir, "stderr"), os.O_RDWR, 0)
	}
	if err != nil {
		shim.CloseAll(ends[:])
		return ends, fmt.Errorf("open container streams: %w", err)
	}
	return ends, nil
}

// EmptyInput returns a pipe without a writer, the standard input of a process where there is no null device.
func EmptyInput() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_ = w.Close() // nothing was written
	return r, nil
}

// Start starts copying the output to the log and to clients.
func (s *Streams) Start() error {
	for i, f := range s.out {
		if f == nil {
			continue
		}
		fd := int(f.Fd())
		if err := unix.SetNonblock(fd, true); err != nil { // Fd made it blocking
			return fmt.Errorf("watch output: %w", err)
		}
		err := s.copier.loop.Add(fd, func() {
			if !s.copy(logfile.Stream(i), fd, false) {
				s.copier.loop.Remove(fd)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// copy delivers what can be read: one read, or until the stream is empty. It returns false at the end of the stream,
// which only terminals have, and when the streams are closed.
func (s *Streams) copy(stream logfile.Stream, fd int, all bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return false
	}
	buf := s.copier.buffers.Get().(*[readSize]byte) // the pool holds nothing else
	defer s.copier.buffers.Put(buf)
	for {
		n, err := unix.Read(fd, buf[:])
		if n > 0 {
			s.deliverLocked(stream, buf[:n])
		}
		if !all || n <= 0 && !errors.Is(err, unix.EINTR) {
			return n > 0 || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
		}
	}
}

// deliverLocked writes output to the log and the sinks.
func (s *Streams) deliverLocked(stream logfile.Stream, p []byte) {
	if err := s.log.Write(stream, p, time.Now()); err != nil {
		s.copier.errors.Printf("container %s: %v", s.dir, err)
	}
	for _, k := range s.sinks {
		if k.stream == stream && !k.cut && !k.enqueue(p) {
			k.end()
		}
	}
}

// Close reads the remaining output of an ended container and closes its streams and log.
func (s *Streams) Close() {
	for i, f := range s.out {
		if f == nil {
			continue
		}
		fd := int(f.Fd())
		s.copier.loop.Remove(fd)
		_ = unix.SetNonblock(fd, true) // the read below returns an error, too
		s.copy(logfile.Stream(i), fd, true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log != nil {
		if err := s.log.Close(time.Now()); err != nil {
			s.copier.errors.Printf("container %s: %v", filepath.Base(s.dir), err)
		}
		s.log = nil
	}
	for _, k := range s.sinks {
		k.end()
	}
	s.sinks = nil
	shim.CloseAll([]*os.File{s.in, s.out[0], s.out[1]})
	s.in = nil
	s.out = [2]*os.File{}
}

// CloseIn closes the container's standard input, which must not be a terminal: that carries the output, too.
func (s *Streams) CloseIn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in != nil {
		_ = s.in.Close() // the container reads its end of file
		s.in = nil
	}
}

// Reopen opens the log again, after its file was moved.
func (s *Streams) Reopen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return shim.ErrNotRunning
	}
	return s.log.Reopen()
}

// SetPolicy changes the policy by which the log is rotated.
func (s *Streams) SetPolicy(policy logrotate.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log != nil {
		s.log.SetPolicy(policy)
	}
}

// State is what another program needs to go on with the streams: their files, nil for none, and the ends of lines that
// are not in the log yet.
type State struct {
	In      *os.File
	Out     [2]*os.File
	Pending [2][]byte
}

// State returns the state; false: the streams are closed.
func (s *Streams) State() (State, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return State{}, false
	}
	return State{In: s.in, Out: s.out, Pending: s.log.Pending()}, true
}

// Restore takes over the streams that another program had.
func (s *Streams) Restore(state State) {
	s.in = state.In
	s.out = state.Out
	s.log.Restore(state.Pending)
}
