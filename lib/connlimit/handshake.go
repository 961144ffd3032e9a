// SPDX-License-Identifier: Apache-2.0

package connlimit

// Before its first request a connection computes in turn with others: from the end of a Read, which brought a part of a handshake, to
// the next Read, Write or Close. Thousands of handshakes at once (a Go client dials once for each request that finds no connection)
// would otherwise be thousands of runnable goroutines, and established connections would wait behind all of them. Nothing of the client
// is waited for meanwhile.

// Read reads, and takes a turn for what the caller does with a part of a handshake.
func (c *conn) Read(b []byte) (int, error) {
	c.leave()
	n, err := c.Conn.Read(b)
	if State(c.reached.Load()) == Pending && err == nil { //nolint:gosec // a State
		c.l.turns.Enter()
		c.turn.Store(true)
	}
	return n, err //nolint:wrapcheck // callers compare it
}

// Write writes; the caller's turn ends.
func (c *conn) Write(b []byte) (int, error) {
	c.leave()
	return c.Conn.Write(b) //nolint:wrapcheck // callers compare it
}

func (c *conn) leave() {
	if c.turn.CompareAndSwap(true, false) {
		c.l.turns.Leave()
	}
}
