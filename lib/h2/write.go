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

// flushFrom is how many bytes are written at once even if more are coming.
const flushFrom = 64 << 10

// field is a header field in lower case.
type field = hpack.HeaderField

// writer is the connection's outgoing half.
type writer struct {
	c       *conn
	queued  atomic.Int32  // those who hold or wait for mu
	spoken  atomic.Bool   // the connection has control frames to say
	kicking atomic.Bool   // a goroutine that will say them has not begun
	ending  atomic.Bool   // the deadline of writes stays as it is
	table   atomic.Uint32 // the header table that the client allows, told to hpack with the next header

	mu       sync.Mutex
	buf      []byte
	lent     *[]byte      // what buf began as, to be given back
	block    bytes.Buffer // a header block
	hpack    *hpack.Encoder
	deadline time.Time
}

func (w *writer) init(c *conn) {
	w.c = c
	w.hpack = hpack.NewEncoder(&w.block)
	w.table.Store(headerTable)
}

// enter begins to write; leave ends it, and flushes unless somebody follows who will.
func (w *writer) enter() {
	w.queued.Add(1)
	w.mu.Lock()
	w.borrow()
}

// borrow gets a buffer: a connection that has nothing to say holds none. w.mu is held.
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
	if w.spoken.Load() {
		w.kick()
	}
}

// kick says the control frames, unless whoever writes at this moment will.
func (w *writer) kick() {
	for w.spoken.Load() && w.mu.TryLock() {
		w.flush()
		w.mu.Unlock()
	}
}

// last writes what there is, unless the client takes too long.
func (w *writer) last() {
	w.ending.Store(true)
	_ = w.c.tc.SetWriteDeadline(time.Now().Add(lingering)) // of who writes now, too
	w.enter()
	w.leave()
}

// flush writes all there is. w.mu is held.
func (w *writer) flush() {
	c := w.c
	if w.spoken.Load() {
		w.borrow()
		c.mu.Lock()
		w.spoken.Store(false)
		w.buf = append(w.buf, c.control...)
		c.control = c.control[:0]
		c.mu.Unlock()
	}
	if len(w.buf) == 0 {
		return
	}
	if t := c.s.options.WriteTimeout; t > 0 && !w.ending.Load() {
		if now := time.Now(); w.deadline.Sub(now) < t {
			w.deadline = now.Add(t + t/2) // so that not every write has to set it
			_ = c.tc.SetWriteDeadline(w.deadline)
		}
	}
	_, err := c.tc.Write(w.buf)
	if cap(w.buf) <= 2*flushFrom {
		*w.lent = w.buf[:0]
		buffers.Put(w.lent)
	}
	w.buf, w.lent = nil, nil
	if err != nil {
		c.fail(err)
	}
}

// appendFrame appends a frame's header; its payload follows.
func appendFrame(b []byte, t http2.FrameType, flags http2.Flags, id uint32, size int) []byte {
	b = append(b, byte(size>>16), byte(size>>8), byte(size), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// queue adds a control frame; the caller sees to a kick. c.mu is held.
func (c *conn) queue(t http2.FrameType, flags http2.Flags, id uint32, payload []byte) {
	c.control = append(appendFrame(c.control, t, flags, id, len(payload)), payload...)
	c.out.spoken.Store(true)
}

func (c *conn) queueReset(id uint32, code http2.ErrCode) {
	c.queue(http2.FrameRSTStream, 0, id, binary.BigEndian.AppendUint32(nil, uint32(code)))
}

func (c *conn) queueWindow(id uint32, n int64) {
	c.queue(http2.FrameWindowUpdate, 0, id, binary.BigEndian.AppendUint32(nil, uint32(n))) //nolint:gosec // at most a window
}

func (c *conn) queueGoAway(code http2.ErrCode) {
	last := c.lastID
	if c.closing {
		last = c.goneID
	}
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), uint32(code))
	c.queue(http2.FrameGoAway, 0, 0, b)
}

// send writes head, if any, and p, as the windows allow, and ends the stream if end.
func (c *conn) send(st *stream, head []field, p []byte, end bool) error {
	for first := true; first || len(p) > 0; first = false {
		n, frame, err := c.reserve(st, len(p), head == nil)
		if err != nil {
			return err
		}
		last := end && n == len(p)
		w := &c.out
		w.enter()
		headed := head != nil
		if headed {
			w.header(st.id, head, last && n == 0, frame)
			head = nil
		}
		switch {
		case n > 0:
			w.data(st.id, p[:n], last, frame)
		case last && !headed:
			w.data(st.id, nil, true, frame)
		}
		p = p[n:]
		w.leave()
	}
	return nil
}

// data appends p in frames, one at least. w.mu is held.
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

// reserve takes up to want bytes of the windows, at least one if it may wait; frame is how large a frame may be.
func (c *conn) reserve(st *stream, want int, wait bool) (n, frame int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if st.err != nil {
			return 0, 0, st.err
		}
		n := max(0, min(int64(want), c.sendWindow, st.sendWindow, flushFrom))
		if n > 0 || want == 0 || !wait {
			c.sendWindow -= n
			st.sendWindow -= n
			return int(n), c.maxFrame, nil
		}
		if late(st.sendBy) {
			c.queueReset(st.id, http2.ErrCodeInternal) // whoever rests next says it
			st.closeLocked(errLate)
			return 0, 0, errLate
		}
		c.waiting++
		st.await(st.sendBy)
		c.waiting--
	}
}

// header appends a header block, in as many frames as it takes. w.mu is held.
func (w *writer) header(id uint32, fields []field, end bool, frame int) {
	if t := min(w.table.Load(), headerTable); t != w.hpack.MaxDynamicTableSize() {
		w.hpack.SetMaxDynamicTableSize(t)
	}
	w.block.Reset()
	for i, f := range fields {
		if index, ok := unlikeBefore[f.Name]; ok && i > 0 { // a change of the table's size comes before the first field
			w.block.Write(appendLiteral(w.block.AvailableBuffer(), index, f))
			continue
		}
		_ = w.hpack.WriteField(f) // into memory
	}
	flags := http2.FlagHeadersEndStream
	if !end {
		flags = 0
	}
	kind, block := http2.FrameHeaders, w.block.Bytes()
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
		kind, flags = http2.FrameContinuation, 0
	}
}

// unlikeBefore are fields whose values hardly ever come twice: to remember them would only push out what is worth it. The
// numbers are their names' places in HPACK's static table (RFC 7541, appendix A), 0 for none.
var unlikeBefore = map[string]uint64{
	"content-length": 28, "date": 33, "audit-id": 0, "etag": 34, "last-modified": 44, "location": 46,
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

// status is the field that begins a response.
func status(code int) field {
	if code == 200 {
		return field{Name: ":status", Value: "200"}
	}
	return field{Name: ":status", Value: strconv.Itoa(code)}
}
