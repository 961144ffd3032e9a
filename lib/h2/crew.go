// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"golang.org/x/net/http2"
)

// crew are the handlers of a connection. conn.mu guards it.
type crew struct {
	running int            // handlers; a reset stream counts until its handler returns
	idle    []chan *stream // of goroutines that wait for a request, with room for one
}

// wake returns the channel of a goroutine that waits for a request; nil: none does.
func (w *crew) wake() chan<- *stream {
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	next := w.idle[n-1]
	w.idle = w.idle[:n-1]
	return next
}

// keep lets a goroutine wait for requests, unless mostIdle do.
func (w *crew) keep(next chan *stream) bool {
	if len(w.idle) == mostIdle {
		return false
	}
	w.idle = append(w.idle, next)
	return true
}

// dismiss ends the goroutines that wait.
func (w *crew) dismiss() {
	for _, next := range w.idle {
		close(next)
	}
	w.idle = nil
}

// begun starts the handler for st. c.mu is held.
func (c *conn) begun(st *stream) {
	c.crew.running++
	if next := c.crew.wake(); next != nil {
		next <- st // it has room
		return
	}
	c.workers.Go(func() { c.work(st) })
}

// work runs handlers, one after the other.
func (c *conn) work(st *stream) {
	next := make(chan *stream, 1)
	for st != nil {
		c.handle(st)
		if !c.rest(st, next) {
			return
		}
		st = <-next
	}
}

// rest ends a stream, and waits for the next request unless mostIdle goroutines do. A closed next means that there is
// none.
func (c *conn) rest(st *stream, next chan *stream) bool {
	c.mu.Lock()
	if st.err == nil && !st.ended {
		c.control.reset(st.id, http2.ErrCodeNo) // the rest of the body is not needed
	}
	st.closeLocked(errFinished)
	c.crew.running--
	wait := c.err == nil && !c.closing && c.crew.keep(next)
	hangUp := false
	if c.crew.running == 0 {
		c.quiet.begin()
		hangUp = c.closing && c.err == nil
	}
	said := c.control.spoken.Load()
	c.mu.Unlock()
	if said {
		c.out.kick()
	}
	if hangUp {
		c.hangUp()
	}
	return wait
}
