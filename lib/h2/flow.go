// SPDX-License-Identifier: Apache-2.0

package h2

import "time"

// inflow is a window for what the client sends: of a connection or of a stream. The client gets bytes back when they
// are at least half of the window, so that it rarely waits and few frames are needed.
type inflow struct {
	size       int64 // of the whole window
	left       int64 // what the client may still send
	unreturned int64 // bytes that were read, and were not given back yet
}

func newInflow(size int64) inflow { return inflow{size: size, left: size} }

// take counts n bytes that the client has sent. It returns false if they are too many.
func (f *inflow) take(n int64) bool {
	f.left -= n
	return f.left >= 0
}

// give gives n bytes back. It returns by how much the client's window grows now; 0: later.
func (f *inflow) give(n int64) (more int64) {
	if f.unreturned += n; f.unreturned < f.size/2 {
		return 0
	}
	more = f.unreturned
	f.left += more
	f.unreturned = 0
	return more
}

// outflow is what the client lets a connection send. A stream has a window of its own besides.
type outflow struct {
	window  int64 // of the connection
	first   int64 // the window that a new stream has
	frame   int   // the largest frame
	waiting int   // writers that wait for a window
}

// budget limits how often something may happen: at once as often as burst, and then rate times a second.
type budget struct {
	burst, rate float64
	used        float64 // of burst, at the time at
	at          time.Time
}

// spend counts one more. It returns false if that is too often.
func (b *budget) spend() bool {
	now := time.Now()
	b.used = max(0, b.used-now.Sub(b.at).Seconds()*b.rate) + 1
	b.at = now
	return b.used <= b.burst
}
