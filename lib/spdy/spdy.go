// SPDX-License-Identifier: Apache-2.0

// Package spdy bounds what the peer of a SPDY/3.1 connection can make its reader keep. The library that serves the
// streams of exec, attach and port-forward queues 250 frames of up to 16 MiB, allows a gigabyte of headers in a frame
// of a few bytes, and any number of streams. kubelet/server and lib/streams put a Conn between it and a
// connection. It serves no streams itself, and knows no Kubernetes.
//
// Invariants:
//  1. Data passes unchanged, in frames of at most maxData bytes: a peer that sends larger ones notices nothing.
//  2. No control frame passes whose headers are larger than all that is needed to open a stream.
package spdy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/moby/spdystream/spdy"
)

const (
	headerSize = 8
	maxData    = 32 << 10
	maxControl = 4 << 10
	maxHeaders = 16
	maxField   = 1 << 10

	controlBit = 0x80
	fin        = 0x01 // flag of data frames, SYN_STREAM, SYN_REPLY and HEADERS
)

// ErrTooLarge is the error for a control frame that no stream needs.
var ErrTooLarge = errors.New("the peer sent a SPDY frame that is larger than allowed")

// Conn is a connection whose Read returns only frames within the bounds. It ends with the first other frame.
type Conn struct {
	net.Conn
	r       io.Reader
	streams int // maximum of open ones that the peer has opened

	// Of Read, which one goroutine calls.
	ready  []byte // checked bytes that are not read yet
	chunk  int    // bytes of the current frame's data that pass through
	left   int    // bytes of the peer's data frame that come in further frames
	data   [headerSize]byte
	check  bytes.Buffer
	framer *spdy.Framer

	written writer

	mu   sync.Mutex
	open map[uint32]half
}

// half says which directions of a stream have ended.
type half struct{ peer, own bool }

// New returns a Conn over conn that reads from r, which may have buffered bytes of conn. The peer may have streams open
// at a time; 0: it opens none.
func New(conn net.Conn, r io.Reader, streams int) (*Conn, error) {
	c := &Conn{
		Conn:    conn,
		r:       r,
		streams: streams,
		open:    map[uint32]half{},
	}
	c.written.frame = c.wrote
	var err error
	c.framer, err = spdy.NewFramerWithOptions(io.Discard, &c.check, spdy.WithMaxControlFramePayloadSize(maxControl),
		spdy.WithMaxHeaderCount(maxHeaders), spdy.WithMaxHeaderFieldSize(maxField))
	if err != nil {
		return nil, fmt.Errorf("check SPDY frames: %w", err)
	}
	return c, nil
}

// Read returns bytes of frames within the bounds.
func (c *Conn) Read(p []byte) (int, error) {
	for len(p) > 0 {
		switch {
		case len(c.ready) > 0:
			n := copy(p, c.ready)
			c.ready = c.ready[n:]
			return n, nil
		case c.chunk > 0:
			n, err := c.r.Read(p[:min(len(p), c.chunk)])
			c.chunk -= n
			return n, err
		case c.left > 0:
			c.split()
		default:
			if err := c.next(); err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

// split begins a frame with the next part of the peer's data frame. Its flags, which end the stream, are those of the
// last part.
func (c *Conn) split() {
	c.chunk = min(c.left, maxData)
	c.left -= c.chunk
	head := c.data
	if c.left > 0 {
		head[4] = 0
	}
	putLength(&head, c.chunk)
	c.ready = head[:]
}

// next reads the header of the peer's next frame, and the whole frame if it is a control frame.
func (c *Conn) next() error {
	var head [headerSize]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return err
	}
	size := length(head[:])
	if head[0]&controlBit == 0 {
		if head[4]&fin != 0 {
			c.ended(streamID(head[:4]), half{peer: true})
		}
		c.data = head
		c.left = size
		if size == 0 {
			c.ready = head[:]
		}
		return nil
	}
	if size > maxControl {
		return ErrTooLarge
	}
	frame := make([]byte, headerSize+size)
	copy(frame, head[:])
	if _, err := io.ReadFull(c.r, frame[headerSize:]); err != nil {
		return err
	}
	if err := c.control(frame); err != nil {
		return err
	}
	c.ready = frame
	return nil
}

// control checks a control frame of the peer.
func (c *Conn) control(frame []byte) error {
	c.check.Reset()
	c.check.Write(frame)
	parsed, err := c.framer.ReadFrame()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	switch f := parsed.(type) {
	case *spdy.SynStreamFrame:
		return c.opened(uint32(f.StreamId), f.CFHeader.Flags&fin != 0)
	case *spdy.SynReplyFrame:
		if f.CFHeader.Flags&fin != 0 {
			c.ended(uint32(f.StreamId), half{peer: true})
		}
	case *spdy.HeadersFrame:
		if f.CFHeader.Flags&fin != 0 {
			c.ended(uint32(f.StreamId), half{peer: true})
		}
	case *spdy.RstStreamFrame:
		c.ended(uint32(f.StreamId), half{peer: true, own: true})
	}
	return nil
}

func (c *Conn) opened(id uint32, ends bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.streams {
		return fmt.Errorf("the peer opened more than %d SPDY streams", c.streams)
	}
	c.open[id] = half{peer: ends}
	return nil
}

// ended marks directions of a stream as ended, and forgets it when both are.
func (c *Conn) ended(id uint32, which half) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, known := c.open[id]
	if !known {
		return
	}
	now.peer = now.peer || which.peer
	now.own = now.own || which.own
	if now.peer && now.own {
		delete(c.open, id)
		return
	}
	c.open[id] = now
}

// Write writes frames of this side and notes which streams they end.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.pass(p[:n])
	return n, err
}

// wrote is called with the header of each written frame and the first four bytes of its payload.
func (c *Conn) wrote(head []byte) {
	switch {
	case head[0]&controlBit == 0:
		if head[4]&fin != 0 {
			c.ended(streamID(head[:4]), half{own: true})
		}
	case spdy.ControlFrameType(binary.BigEndian.Uint16(head[2:4])) == spdy.TypeRstStream:
		c.ended(streamID(head[headerSize:]), half{peer: true, own: true})
	case spdy.ControlFrameType(binary.BigEndian.Uint16(head[2:4])) == spdy.TypeSynReply && head[4]&fin != 0:
		c.ended(streamID(head[headerSize:]), half{own: true})
	}
}

// writer finds the frames in what is written, in whatever pieces it comes.
type writer struct {
	frame func(head []byte)
	head  [headerSize + 4]byte
	have  int
	skip  int
}

func (w *writer) pass(p []byte) {
	for len(p) > 0 {
		if w.skip > 0 {
			n := min(w.skip, len(p))
			w.skip -= n
			p = p[n:]
			continue
		}
		want := headerSize
		if w.have >= headerSize {
			want = w.want()
		}
		n := copy(w.head[w.have:want], p)
		w.have += n
		p = p[n:]
		if w.have < headerSize || w.have < w.want() {
			continue
		}
		w.frame(w.head[:])
		w.skip = length(w.head[:]) - (w.have - headerSize)
		w.have = 0
	}
}

// want is how many bytes of the current frame are looked at.
func (w *writer) want() int {
	if w.head[0]&controlBit == 0 {
		return headerSize
	}
	return headerSize + min(4, length(w.head[:]))
}

func length(head []byte) int { return int(head[5])<<16 | int(head[6])<<8 | int(head[7]) }

func putLength(head *[headerSize]byte, n int) {
	head[5] = byte(n >> 16)
	head[6] = byte(n >> 8)
	head[7] = byte(n)
}

func streamID(b []byte) uint32 { return binary.BigEndian.Uint32(b) & 0x7fffffff }
