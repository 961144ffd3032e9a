// SPDX-License-Identifier: Apache-2.0

package h2

import "time"

// quiet is the time-out of a connection without requests. conn.mu guards it.
type quiet struct {
	after time.Duration // 0: there is no time-out
	check func()        // is called when the time may be over
	since time.Time
	timer *time.Timer // nil: it does not run
}

// begin begins the time without requests.
func (q *quiet) begin() {
	if q.after <= 0 {
		return
	}
	q.since = time.Now()
	if q.timer == nil {
		q.timer = time.AfterFunc(q.after, q.check)
	}
}

// over reports whether the time is over, in check. If not, check is called again.
func (q *quiet) over() bool {
	left := q.after - time.Since(q.since)
	if left > 0 {
		q.timer.Reset(left)
	}
	return left <= 0
}

// rest forgets the timer, in check; a later begin makes another one.
func (q *quiet) rest() { q.timer = nil }

// stop ends the time-out for good.
func (q *quiet) stop() {
	if q.timer != nil {
		q.timer.Stop()
	}
}
