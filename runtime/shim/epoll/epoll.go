// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package epoll waits for descriptors. The supervisor (keelson-shim) has two loops: one for exits and connections, and
// one that copies output to logs, so that a slow disk does not delay exits. It knows nothing about what is read.
package epoll

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Loop is one goroutine that calls the handlers of readable descriptors.
type Loop struct {
	ep int
	// gate is held for reading while handlers run.
	gate *sync.RWMutex

	mu       sync.Mutex
	handlers map[int]func()
}

// New returns a loop whose handlers hold gate for reading: while it is held for writing, none runs.
func New(gate *sync.RWMutex) (*Loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &Loop{ep: ep, gate: gate, handlers: map[int]func(){}}, nil
}

// Add calls h whenever fd is readable or hung up, until Remove.
func (l *Loop) Add(fd int, h func()) error {
	l.mu.Lock()
	l.handlers[fd] = h
	l.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} // descriptors are small
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		l.mu.Lock()
		delete(l.handlers, fd)
		l.mu.Unlock()
		return fmt.Errorf("watch descriptor: %w", err)
	}
	return nil
}

// Remove must be called before fd is closed. It does not wait for a running handler.
func (l *Loop) Remove(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.handlers[fd]; !ok {
		return
	}
	delete(l.handlers, fd)
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil) // it cannot fail for a descriptor that was added
}

// Run serves until the process ends.
func (l *Loop) Run() error {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(l.ep, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		l.gate.RLock()
		for _, e := range events[:n] {
			l.mu.Lock()
			h := l.handlers[int(e.Fd)]
			l.mu.Unlock()
			if h != nil {
				h()
			}
		}
		l.gate.RUnlock()
	}
}
