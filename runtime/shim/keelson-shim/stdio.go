// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/logfile"
)

// stdio holds a container's streams. Output comes through FIFOs that both sides open for reading and writing: so the
// container gets no EPIPE when the supervisor dies, and a new supervisor reads what is in the FIFO. With a terminal, in
// and out are the terminal.
type stdio struct {
	in  *os.File    // write end of standard input; nil when the container has none
	out [2]*os.File // read ends by logfile.Stream; with a terminal only the first

	mu    sync.Mutex // guards the fields below; the output loop holds it while it copies
	log   *logfile.Writer
	sinks []*sink
}

// sink is one stream of an attached client. Its queue is bounded: a client that does not read is disconnected and does
// not block the container.
type sink struct {
	stream logfile.Stream
	queue  chan []byte // closed at the end
	queued atomic.Int64
	cut    bool
}

// What attached clients have not read yet is bounded: in reads of up to readSize, and in bytes of one client and of
// all.
const (
	sinkQueue    = 256
	maxSinkBytes = 2 << 20
	maxAllSinks  = 64 << 20
)

// enqueue queues a copy of p for the client. It returns false if the client, or all clients together, have too much
// to read.
func (s *supervisor) enqueue(k *sink, p []byte) bool {
	n := int64(len(p))
	if k.queued.Load()+n > maxSinkBytes || s.queued.Load()+n > maxAllSinks {
		return false
	}
	s.count(k, n)
	select {
	case k.queue <- append([]byte(nil), p...):
		return true
	default:
		s.count(k, -n)
		return false
	}
}

func (s *supervisor) count(k *sink, n int64) {
	k.queued.Add(n)
	s.queued.Add(n)
}

// readSize is a FIFO's capacity.
const readSize = 64 << 10

// fifos makes the FIFOs of a container without a terminal.
func fifos(dir string, stdin bool) error {
	names := []string{"stdout", "stderr"}
	if stdin {
		names = append(names, "stdin")
	}
	for _, n := range names {
		if err := unix.Mkfifo(filepath.Join(dir, n), 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make fifo: %w", err)
		}
	}
	return nil
}

// openFIFOs opens the supervisor's side of a container's FIFOs.
func openFIFOs(dir string, stdin bool) (*stdio, error) {
	io := &stdio{}
	for s, n := range [...]string{"stdout", "stderr"} {
		f, err := openRaw(filepath.Join(dir, n), unix.O_RDWR|unix.O_NONBLOCK)
		if err != nil {
			io.close()
			return nil, err
		}
		io.out[s] = f
	}
	if stdin {
		f, err := openRaw(filepath.Join(dir, "stdin"), unix.O_RDWR|unix.O_NONBLOCK)
		if err != nil {
			io.close()
			return nil, err
		}
		io.in = f
	}
	return io, nil
}

// openRaw opens a file without Go's poller: readiness is for the epoll loop.
func openRaw(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return rawFile(fd, path), nil
}

// rawFile wraps a descriptor that Go treats as blocking: reads are plain system calls, which may return EAGAIN.
func rawFile(fd int, name string) *os.File {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_NONBLOCK != 0 {
		// os.NewFile registers a non-blocking descriptor with the poller.
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK) // F_GETFL has succeeded
		defer func() { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags) }()
	}
	return os.NewFile(uintptr(fd), name)
}

// childEnds opens the container's side of its FIFOs: stdin, stdout, stderr. They are blocking, as programs expect.
// Without stdin the input is the host's null device if libcontainer will replace it by the container's, else an empty
// pipe.
func childEnds(dir string, stdin, ownDev bool) ([3]*os.File, error) {
	var ends [3]*os.File
	var err error
	switch {
	case stdin:
		ends[0], err = os.OpenFile(filepath.Join(dir, "stdin"), os.O_RDONLY, 0)
	case ownDev:
		ends[0], err = os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	default:
		ends[0], err = emptyInput()
	}
	if err == nil {
		ends[1], err = os.OpenFile(filepath.Join(dir, "stdout"), os.O_RDWR, 0)
	}
	if err == nil {
		ends[2], err = os.OpenFile(filepath.Join(dir, "stderr"), os.O_RDWR, 0)
	}
	if err != nil {
		shim.CloseAll(ends[:])
		return ends, fmt.Errorf("open container streams: %w", err)
	}
	return ends, nil
}

// watchOutput starts copying the container's output to its log and sinks.
func (s *supervisor) watchOutput(c *container) error {
	for i, f := range c.io.out {
		if f == nil {
			continue
		}
		fd := int(f.Fd())
		if err := unix.SetNonblock(fd, true); err != nil { // Fd made it blocking
			return fmt.Errorf("watch output: %w", err)
		}
		err := s.output.add(fd, func() {
			if !s.copyOutput(c, logfile.Stream(i), fd) {
				s.output.remove(fd)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// copyOutput reads once and delivers the data. It returns false at the end of the stream, which only terminals have.
func (s *supervisor) copyOutput(c *container, stream logfile.Stream, fd int) bool {
	c.io.mu.Lock()
	defer c.io.mu.Unlock()
	if c.io.log == nil {
		return false // closed
	}
	buf := s.buffers.Get().(*[readSize]byte) // the pool holds nothing else
	defer s.buffers.Put(buf)
	n, err := unix.Read(fd, buf[:])
	if n > 0 {
		s.deliver(c, stream, buf[:n])
		return true
	}
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
}

// deliver writes output to the log and the sinks. The caller holds io.mu.
func (s *supervisor) deliver(c *container, stream logfile.Stream, p []byte) {
	if err := c.io.log.Write(stream, p, time.Now()); err != nil {
		s.log.Printf("container %s: %v", c.dir, err)
	}
	for _, k := range c.io.sinks {
		if k.stream != stream || k.cut {
			continue
		}
		if !s.enqueue(k, p) {
			k.cut = true
			close(k.queue)
		}
	}
}

// closeIO reads the remaining output of an ended container and closes its streams and log.
func (s *supervisor) closeIO(ctr *container) {
	for i, f := range ctr.io.out {
		if f == nil {
			continue
		}
		fd := int(f.Fd())
		s.output.remove(fd)
		_ = unix.SetNonblock(fd, true) // the read below returns an error, too
		s.drain(ctr, logfile.Stream(i), fd)
	}
	ctr.io.mu.Lock()
	defer ctr.io.mu.Unlock()
	if ctr.io.log != nil {
		if err := ctr.io.log.Close(time.Now()); err != nil {
			s.log.Printf("container %s: %v", ctr.state.ID, err)
		}
		ctr.io.log = nil
	}
	for _, k := range ctr.io.sinks {
		if !k.cut {
			k.cut = true
			close(k.queue)
		}
	}
	ctr.io.sinks = nil
	ctr.io.close()
}

// drain reads a stream until it is empty.
func (s *supervisor) drain(ctr *container, stream logfile.Stream, fd int) {
	ctr.io.mu.Lock()
	defer ctr.io.mu.Unlock()
	if ctr.io.log == nil {
		return
	}
	buf := s.buffers.Get().(*[readSize]byte) // the pool holds nothing else
	defer s.buffers.Put(buf)
	for {
		n, err := unix.Read(fd, buf[:])
		if n > 0 {
			s.deliver(ctr, stream, buf[:n])
		} else if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (io *stdio) close() {
	shim.CloseAll([]*os.File{io.in, io.out[0], io.out[1]})
	io.in = nil
	io.out = [2]*os.File{}
}

// closeIn closes the container's standard input. A terminal stays open: it carries the output, too.
func (c *container) closeIn() {
	if c.io == nil || c.snapshot().Terminal {
		return
	}
	c.io.mu.Lock()
	defer c.io.mu.Unlock()
	if c.io.in != nil {
		_ = c.io.in.Close() // the container reads its end of file
		c.io.in = nil
	}
}

func (s *supervisor) reopen(id string) error {
	container, err := s.running(id)
	if err != nil {
		return err
	}
	if container.io == nil {
		return nil
	}
	container.io.mu.Lock()
	defer container.io.mu.Unlock()
	if container.io.log == nil {
		return fmt.Errorf("container %s: %w", id, shim.ErrNotRunning)
	}
	return container.io.log.Reopen()
}
