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
	container, sinks, err := s.attachStreams(conn.Conn, id, a, files)
	if err != nil {
		shim.CloseAll(files)
		s.fail(conn.Conn, err)
		return
	}
	conn.leave()
	select {
	case <-container.ended:
		_ = reply(conn.Conn, shim.Exited{Code: container.snapshot().ExitCode}) // the client may have disconnected
	case <-s.clientClosed(conn.Conn):
		s.detachStreams(container, sinks)
		if a.Stdin && container.snapshot().StdinOnce {
			container.closeIn()
		}
	}
}

// attachStreams connects the client's descriptors to the output. After success their writer goroutines own them. The
// caller holds upgradeLock.
func (s *supervisor) attachStreams(
	conn *shim.Conn, id string, attach shim.Attach, files []*os.File,
) (*container, []*sink, error) {
	ctr, err := s.running(id)
	if err != nil {
		return nil, nil, err
	}
	if ctr.io == nil {
		return nil, nil, errors.New("attach: the container has no streams")
	}
	var want []logfile.Stream
	if attach.Stdout {
		want = append(want, logfile.Stdout)
	}
	if attach.Stderr {
		want = append(want, logfile.Stderr)
	}
	if len(files) != len(want) {
		return nil, nil, fmt.Errorf("attach: %d descriptors, want %d", len(files), len(want))
	}
	ctr.io.mu.Lock()
	defer ctr.io.mu.Unlock()
	if ctr.io.log == nil {
		return nil, nil, fmt.Errorf("attach to container %s: %w", id, shim.ErrNotRunning)
	}
	at := shim.Attached{Terminal: ctr.snapshot().Terminal}
	pass := []*os.File(nil)
	if attach.Stdin && ctr.io.in != nil {
		at.Stdin = true
		pass = []*os.File{ctr.io.in}
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
				s.count(k, -int64(len(p)))
			}
		}()
		sinks = append(sinks, k)
	}
	ctr.io.sinks = append(ctr.io.sinks, sinks...)
	return ctr, sinks, nil
}

func (s *supervisor) detachStreams(ctr *container, sinks []*sink) {
	ctr.io.mu.Lock()
	defer ctr.io.mu.Unlock()
	kept := ctr.io.sinks[:0]
	for _, k := range ctr.io.sinks {
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
	ctr.io.sinks = kept
}
