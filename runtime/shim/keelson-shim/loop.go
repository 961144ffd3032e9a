// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// loop calls handlers of descriptors that became readable, all from one goroutine. The supervisor has two: one that
// learns of ended processes, and one that moves output to logs, so that a slow disk delays no exit.
type loop struct {
	ep int
	// gate is held for reading around each batch, so that an upgrade can find everything at rest.
	gate *sync.RWMutex

	mu       sync.Mutex
	handlers map[int]func()
}

func newLoop(gate *sync.RWMutex) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &loop{ep: ep, gate: gate, handlers: map[int]func(){}}, nil
}

// add calls h whenever fd is readable or hung up, until remove.
func (l *loop) add(fd int, h func()) error {
	l.mu.Lock()
	l.handlers[fd] = h
	l.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} //nolint:gosec // descriptors are small
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		l.mu.Lock()
		delete(l.handlers, fd)
		l.mu.Unlock()
		return fmt.Errorf("watch descriptor: %w", err)
	}
	return nil
}

// remove must come before fd is closed. A handler that is running goes on.
func (l *loop) remove(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.handlers[fd]; !ok {
		return
	}
	delete(l.handlers, fd)
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil) // it was added; nothing else can be wrong with it
}

// run serves until the process ends.
func (l *loop) run() error {
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
