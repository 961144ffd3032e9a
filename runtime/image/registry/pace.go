// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// The minimal pace of a download: minBytes in paceWindow, which are 4 KiB a second. A slower one would keep its place
// for days.
const (
	paceWindow = time.Minute
	// deadTime is the wait without a byte after which a connection counts as broken, not as slow.
	deadTime = paceWindow / 2
	minBytes = 240 << 10
)

// pace ends a transfer that is too slow. Only the time in which the reader waits for bytes counts: a full disk or a
// slow unpacker is not the sender's fault.
type pace struct {
	timer *time.Timer
	end   func()        // ends the transfer
	late  atomic.Bool   // the window ended with too few bytes
	left  time.Duration // of the window
	got   int64         // bytes in the window
	quiet time.Duration // how long the last read waited, if it brought nothing
}

// newPace returns a pace that calls end, once, when a transfer is too slow.
func newPace(end func()) *pace {
	p := &pace{left: paceWindow}
	p.end = sync.OnceFunc(func() {
		p.late.Store(true)
		end()
	})
	p.timer = time.AfterFunc(paceWindow, p.end)
	p.timer.Stop()
	return p
}

// read reads once from r. After the end it fails.
func (p *pace) read(r io.Reader, b []byte) (int, error) {
	if p.left <= 0 {
		p.end()
		return 0, errSlow
	}
	begin := time.Now()
	p.timer.Reset(p.left)
	n, err := r.Read(b)
	p.timer.Stop()
	waited := time.Since(begin)
	p.left -= waited
	p.quiet = 0
	if n == 0 {
		p.quiet = waited
	}
	p.got += int64(n)
	if p.got >= minBytes {
		p.left = paceWindow
		p.got = 0
	}
	return n, err
}

// paced is a reader with a pace.
type paced struct {
	pace *pace
	r    io.Reader
}

func (p paced) Read(b []byte) (int, error) { return p.pace.read(p.r, b) }
