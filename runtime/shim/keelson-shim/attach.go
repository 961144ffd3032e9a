// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"

	"keelson/runtime/shim"
	"keelson/runtime/shim/logfile"
)

// attach serves one attached client until it disconnects or the container ends.
func (s *supervisor) attach(conn caller, id string, a shim.Attach, files []*os.File) {
	c, sinks, err := s.attachStreams(conn.Conn, id, a, files)
	if err != nil {
		shim.CloseAll(files)
		s.fail(conn.Conn, err)
		return
	}
	conn.leave()
	select {
	case <-c.ended:
		_ = reply(conn.Conn, shim.Exited{Code: c.snapshot().ExitCode}) // the client may have disconnected
	case <-s.clientClosed(conn.Conn):
		s.detachStreams(c, sinks)
		if a.Stdin && c.snapshot().StdinOnce {
			c.closeIn()
		}
	}
}

// attachStreams connects the client's descriptors to the output. After success their writer goroutines own them. The
// caller holds upgradeLock.
func (s *supervisor) attachStreams(
	conn *shim.Conn, id string, a shim.Attach, files []*os.File,
) (*container, []*sink, error) {
	c, err := s.running(id)
	if err != nil {
		return nil, nil, err
	}
	if c.io == nil {
		return nil, nil, errors.New("attach: the container has no streams")
	}
	var want []logfile.Stream
	if a.Stdout {
		want = append(want, logfile.Stdout)
	}
	if a.Stderr {
		want = append(want, logfile.Stderr)
	}
	if len(files) != len(want) {
		return nil, nil, fmt.Errorf("attach: %d descriptors, want %d", len(files), len(want))
	}
	c.io.mu.Lock()
	defer c.io.mu.Unlock()
	if c.io.log == nil {
		return nil, nil, fmt.Errorf("attach to container %s: %w", id, shim.ErrNotRunning)
	}
	at := shim.Attached{Terminal: c.snapshot().Terminal}
	pass := []*os.File(nil)
	if a.Stdin && c.io.in != nil {
		at.Stdin = true
		pass = []*os.File{c.io.in}
	}
	if err := replyWith(conn, at, pass...); err != nil {
		return nil, nil, err
	}
	var sinks []*sink
	for i, stream := range want {
		k := &sink{stream: stream, queue: make(chan []byte, sinkQueue)}
		f := files[i]
		// ends when the queue is closed: at the end of the container or the client, or when the client is too slow
		go func() {
			defer func() { _ = f.Close() }()
			broken := false
			for p := range k.queue {
				if !broken {
					_, err := f.Write(p)
					broken = err != nil
				}
			}
		}()
		sinks = append(sinks, k)
	}
	c.io.sinks = append(c.io.sinks, sinks...)
	return c, sinks, nil
}

func (s *supervisor) detachStreams(c *container, sinks []*sink) {
	c.io.mu.Lock()
	defer c.io.mu.Unlock()
	kept := c.io.sinks[:0]
	for _, k := range c.io.sinks {
		mine := false
		for _, m := range sinks {
			mine = mine || m == k
		}
		if !mine {
			kept = append(kept, k)
		} else if !k.cut {
			k.cut = true
			close(k.queue)
		}
	}
	c.io.sinks = kept
}
