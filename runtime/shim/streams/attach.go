// SPDX-License-Identifier: Apache-2.0

//go:build linux

package streams

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"keelson/runtime/shim"
	"keelson/runtime/shim/logfile"
)

// What attached clients have not read yet is bounded: in reads of up to readSize, and in bytes of one client and of
// all.
const (
	sinkQueue    = 256
	maxSinkBytes = 2 << 20
	maxAllSinks  = 64 << 20
)

// sink is one stream of an attached client.
type sink struct {
	copier *Copier
	stream logfile.Stream
	queue  chan []byte // closed at the end
	queued atomic.Int64
	cut    bool
}

// Attach connects the descriptors of a client to the output that follows. After success it owns them, and closes them
// at the end of the container, after detach, or when the client is too slow. answer sends the client the reply, before
// any output.
func (s *Streams) Attach(
	attach shim.Attach, terminal bool, files []*os.File, answer func(shim.Attached, ...*os.File) error,
) (detach func(), err error) {
	var want []logfile.Stream
	if attach.Stdout {
		want = append(want, logfile.Stdout)
	}
	if attach.Stderr {
		want = append(want, logfile.Stderr)
	}
	if len(files) != len(want) {
		return nil, fmt.Errorf("attach: %d descriptors, want %d", len(files), len(want))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return nil, fmt.Errorf("attach: %w", shim.ErrNotRunning)
	}
	reply := shim.Attached{Terminal: terminal}
	var pass []*os.File
	if attach.Stdin && s.in != nil {
		reply.Stdin = true
		pass = []*os.File{s.in}
	}
	if err := answer(reply, pass...); err != nil {
		return nil, err
	}
	var mine []*sink
	for i, stream := range want {
		k := &sink{copier: s.copier, stream: stream, queue: make(chan []byte, sinkQueue)}
		go k.write(files[i]) // ends when the queue is closed
		mine = append(mine, k)
	}
	s.sinks = append(s.sinks, mine...)
	return func() { s.detach(mine) }, nil
}

func (s *Streams) detach(mine []*sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range mine {
		k.end()
	}
	s.sinks = slices.DeleteFunc(s.sinks, func(k *sink) bool { return slices.Contains(mine, k) })
}

// enqueue queues a copy of p. It returns false if the client, or all clients together, have too much to read.
func (k *sink) enqueue(p []byte) bool {
	n := int64(len(p))
	if k.queued.Load()+n > maxSinkBytes || k.copier.queued.Load()+n > maxAllSinks {
		return false
	}
	k.count(n)
	select {
	case k.queue <- append([]byte(nil), p...):
		return true
	default:
		k.count(-n)
		return false
	}
}

func (k *sink) count(n int64) {
	k.queued.Add(n)
	k.copier.queued.Add(n)
}

// end closes the queue; it may be called twice. The caller holds the lock of the streams.
func (k *sink) end() {
	if !k.cut {
		k.cut = true
		close(k.queue)
	}
}

// write writes to the client until the queue is closed.
func (k *sink) write(f *os.File) {
	defer func() { _ = f.Close() }()
	broken := false
	for p := range k.queue {
		if !broken {
			_, err := f.Write(p)
			broken = err != nil
		}
		k.count(-int64(len(p)))
	}
}
