// SPDX-License-Identifier: Apache-2.0

package connlimit

// Before its first request a connection holds a place in turns while it computes: from the return of a Read, which has
// a part of the handshake, to the next Read, Write or Close. Thousands of concurrent handshakes (a Go client dials for
// each request that finds no free connection) would otherwise be thousands of runnable goroutines, and established
// connections would be scheduled after all of them. It never waits for the client while it holds a place.

// Read reads, and enters turns for the caller's handshake computation.
func (c *conn) Read(b []byte) (int, error) {
	c.leave()
	n, err := c.Conn.Read(b)
	if !c.requested.Load() && err == nil {
		c.l.turns.Enter()
		c.turn.Store(true)
	}
	return n, err // callers compare it
}

// Write leaves turns and writes.
func (c *conn) Write(b []byte) (int, error) {
	c.leave()
	return c.Conn.Write(b) // callers compare it
}

func (c *conn) leave() {
	if c.turn.CompareAndSwap(true, false) {
		c.l.turns.Leave()
	}
}
