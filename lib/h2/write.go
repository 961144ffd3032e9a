// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// flushFrom is the number of buffered bytes from which they are flushed even if more follow.
const flushFrom = 64 << 10

// field is a header field in lower case.
type field = hpack.HeaderField

// writer is the output of a connection.
type writer struct {
	c       *conn
	queued  atomic.Int32  // goroutines that hold or wait for mu
	kicking atomic.Bool   // a goroutine that will send them has not started yet
	ending  atomic.Bool   // the write deadline must not be changed
	table   atomic.Uint32 // the client's header table size, for hpack with the next header

	mu       sync.Mutex
	buf      []byte
	lent     *[]byte      // the pool's buffer behind buf
	block    bytes.Buffer // a header block
	hpack    *hpack.Encoder
	deadline time.Time
}

func (w *writer) init(c *conn) {
	w.c = c
	w.hpack = hpack.NewEncoder(&w.block)
	w.table.Store(headerTable)
}

// enter locks the writer; leave unlocks it, and flushes unless another goroutine waits.
func (w *writer) enter() {
	w.queued.Add(1)
	w.mu.Lock()
	w.borrow()
}

// borrow gets a buffer from the pool: an idle connection has none. w.mu is held.
func (w *writer) borrow() {
	if w.lent == nil {
		w.lent, _ = buffers.Get().(*[]byte)
		w.buf = (*w.lent)[:0]
	}
}

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 4<<10)
	return &b
}}

func (w *writer) leave() {
	if last := w.queued.Add(-1) == 0; last || len(w.buf) >= flushFrom {
		w.flush()
	}
	w.mu.Unlock()
	if w.c.control.spoken.Load() {
		w.kick()
	}
}

// kick sends the control frames, unless a current writer will.
func (w *writer) kick() {
	for w.c.control.spoken.Load() && w.mu.TryLock() {
		w.flush()
		w.mu.Unlock()
	}
}

// last writes the remaining output within the time lingering.
func (w *writer) last() {
	w.ending.Store(true)
	_ = w.c.tc.SetWriteDeadline(time.Now().Add(lingering)) // also for a current writer
	w.enter()
	w.leave()
}

// flush writes the buffer. w.mu is held.
func (w *writer) flush() {
	conn := w.c
	if w.c.control.spoken.Load() {
		w.borrow()
		conn.mu.Lock()
		w.buf = conn.control.moveTo(w.buf)
		conn.mu.Unlock()
	}
	if len(w.buf) == 0 {
		return
	}
	if t := conn.s.options.WriteTimeout; t > 0 && !w.ending.Load() {
		if now := time.Now(); w.deadline.Sub(now) < t {
			w.deadline = now.Add(t + t/2) // so that the deadline need not be set for each write
			_ = conn.tc.SetWriteDeadline(w.deadline)
		}
	}
	_, err := conn.tc.Write(w.buf)
	if cap(w.buf) <= 2*flushFrom {
		*w.lent = w.buf[:0]
		buffers.Put(w.lent)
	}
	w.buf = nil
	w.lent = nil
	if err != nil {
		conn.fail(err)
	}
}

// appendFrame appends a frame's header; its payload follows.
func appendFrame(b []byte, t http2.FrameType, flags http2.Flags, id uint32, size int) []byte {
	b = append(b, byte(size>>16), byte(size>>8), byte(size), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// queueGoAway queues GOAWAY after the newest stream that is served. c.mu is held.
func (c *conn) queueGoAway(code http2.ErrCode) {
	last := c.lastID
	if c.closing {
		last = c.goneID
	}
	c.control.goAway(last, code)
}

// send writes the header, if any, and p as the windows allow, and ends the stream if end is set.
func (c *conn) send(st *stream, head []field, p []byte, end bool) error {
	for first := true; first || len(p) > 0; first = false {
		n, frame, err := c.reserve(st, len(p), head == nil, end)
		if err != nil {
			return err
		}
		last := end && n == len(p)
		writer := &c.out
		writer.enter()
		headed := head != nil
		if headed {
			writer.header(st.id, head, last && n == 0, frame)
			head = nil
		}
		switch {
		case n > 0:
			writer.data(st.id, p[:n], last, frame)
		case last && !headed:
			writer.data(st.id, nil, true, frame)
		}
		p = p[n:]
		writer.leave()
	}
	return nil
}

// data appends p in one or more frames. w.mu is held.
func (w *writer) data(id uint32, p []byte, end bool, frame int) {
	for {
		part := p[:min(len(p), frame)]
		p = p[len(part):]
		var flags http2.Flags
		if end && len(p) == 0 {
			flags = http2.FlagDataEndStream
		}
		w.buf = append(appendFrame(w.buf, http2.FrameData, flags, id, len(part)), part...)
		if len(p) == 0 {
			return
		}
	}
}

// reserve takes up to want bytes from the windows, at least one if wait is set; frame is the maximum frame size. end:
// the stream ends with these bytes.
func (c *conn) reserve(st *stream, want int, wait, end bool) (n, frame int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if st.err != nil {
			return 0, 0, st.err
		}
		n := max(0, min(int64(want), c.outflow.window, st.sendWindow, flushFrom))
		if n > 0 || want == 0 || !wait {
			c.outflow.window -= n
			st.sendWindow -= n
			st.answered = end && int(n) == want
			return int(n), c.outflow.frame, nil
		}
		if late(st.sendBy) {
			c.control.reset(st.id, http2.ErrCodeInternal) // the next rest sends it
			st.closeLocked(errLate)
			return 0, 0, errLate
		}
		c.outflow.waiting++
		st.await(st.sendBy)
		c.outflow.waiting--
	}
}

// header appends a header block, in one or more frames. w.mu is held.
func (w *writer) header(id uint32, fields []field, end bool, frame int) {
	if t := min(w.table.Load(), headerTable); t != w.hpack.MaxDynamicTableSize() {
		w.hpack.SetMaxDynamicTableSize(t)
	}
	w.block.Reset()
	for i, f := range fields {
		if index, ok := unlikeBefore[f.Name]; ok && i > 0 { // a table size update must precede the first field
			w.block.Write(appendLiteral(w.block.AvailableBuffer(), index, f))
			continue
		}
		_ = w.hpack.WriteField(f) // a write to memory
	}
	flags := http2.FlagHeadersEndStream
	if !end {
		flags = 0
	}
	kind := http2.FrameHeaders
	block := w.block.Bytes()
	for {
		part := block[:min(len(block), frame)]
		block = block[len(part):]
		if len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		w.buf = append(appendFrame(w.buf, kind, flags, id, len(part)), part...)
		if len(block) == 0 {
			return
		}
		kind = http2.FrameContinuation
		flags = 0
	}
}

// unlikeBefore are fields whose values rarely repeat: indexing them would only evict others. The numbers are the
// indexes of their names in HPACK's static table (RFC 7541, appendix A), 0 for none.
var unlikeBefore = map[string]uint64{
	"content-length": 28,
	"date":           33,
	"audit-id":       0,
	"etag":           34,
	"last-modified":  44,
	"location":       46,
}

// appendLiteral appends f as a literal that is not indexed (RFC 7541, section 6.2.2).
func appendLiteral(b []byte, index uint64, f field) []byte {
	b = appendInt(b, 4, index)
	if index == 0 {
		b = append(appendInt(b, 7, uint64(len(f.Name))), f.Name...)
	}
	return append(appendInt(b, 7, uint64(len(f.Value))), f.Value...)
}

// appendInt appends n in a prefix of so many bits, the others zero (RFC 7541, section 5.1).
func appendInt(b []byte, bits uint, n uint64) []byte {
	most := uint64(1)<<bits - 1
	if n < most {
		return append(b, byte(n))
	}
	b = append(b, byte(most))
	return binary.AppendUvarint(b, n-most)
}

// status returns the field :status.
func status(code int) field {
	if code == 200 {
		return field{Name: ":status", Value: "200"}
	}
	return field{Name: ":status", Value: strconv.Itoa(code)}
}
