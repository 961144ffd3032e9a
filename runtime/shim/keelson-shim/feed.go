// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"sync"

	"keelson/runtime/shim"
)

// feed sends exits to those who subscribe to them.
type feed struct {
	mu          sync.Mutex
	subscribers map[chan shim.State]struct{}
}

// publish sends an exit to the subscribers. A slow one is disconnected; it subscribes again.
func (f *feed) publish(st shim.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.subscribers {
		select {
		case ch <- st:
		default:
			delete(f.subscribers, ch)
			close(ch)
		}
	}
}

// subscribe returns a channel of the exits from now on, until end.
func (f *feed) subscribe() (exits <-chan shim.State, end func()) {
	ch := make(chan shim.State, 1024)
	f.mu.Lock()
	f.subscribers[ch] = struct{}{}
	f.mu.Unlock()
	return ch, func() {
		f.mu.Lock()
		delete(f.subscribers, ch)
		f.mu.Unlock()
	}
}
