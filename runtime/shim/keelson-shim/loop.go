// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// loop is an epoll loop: one goroutine calls the handlers of readable descriptors. The supervisor has two: one for
// exits and connections, and one that copies output to logs, so that a slow disk does not delay exits.
type loop struct {
	ep int
	// upgradeLock is held for reading while handlers run.
	upgradeLock *sync.RWMutex

	mu       sync.Mutex
	handlers map[int]func()
}

func newLoop(upgradeLock *sync.RWMutex) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &loop{ep: ep, upgradeLock: upgradeLock, handlers: map[int]func(){}}, nil
}

// add calls h whenever fd is readable or hung up, until remove.
func (l *loop) add(fd int, h func()) error {
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

// remove must be called before fd is closed. It does not wait for a running handler.
func (l *loop) remove(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.handlers[fd]; !ok {
		return
	}
	delete(l.handlers, fd)
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil) // it cannot fail for a descriptor that was added
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
		l.upgradeLock.RLock()
		for _, e := range events[:n] {
			l.mu.Lock()
			h := l.handlers[int(e.Fd)]
			l.mu.Unlock()
			if h != nil {
				h()
			}
		}
		l.upgradeLock.RUnlock()
	}
}
