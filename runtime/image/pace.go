// SPDX-License-Identifier: Apache-2.0

package image

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
	minBytes   = 240 << 10
)

// pace ends a transfer that is too slow. Only the time in which somebody waits for bytes counts: a full disk or a slow
// unpacker is not the sender's fault.
type pace struct {
	timer *time.Timer
	end   func()        // ends the transfer
	late  atomic.Bool   // the window ended with too few bytes
	left  time.Duration // of the window
	got   int64         // bytes in the window
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
	p.left -= time.Since(begin)
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
