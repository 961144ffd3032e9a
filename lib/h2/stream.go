// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

var (
	errGone     = errors.New("the client reset the stream")
	errFinished = errors.New("the request has been answered")
	errAborted  = errors.New("the handler gave up")
	errLate     = fmt.Errorf("write of the answer: %w", os.ErrDeadlineExceeded)
)

// stream is a request and its response. c.mu guards the fields that are not constant.
type stream struct {
	c       *conn
	id      uint32
	req     *http.Request
	cancel  context.CancelFunc
	changed sync.Cond // of anything that a handler may wait for

	err        error // why nothing more can be sent
	sendWindow int64

	body          unread
	bodyErr       error // the error after body; nil: more may come
	closed        bool  // the handler has closed the body
	ended         bool  // END_STREAM was received
	answered      bool  // END_STREAM is being sent: a client that has it may take the stream for closed
	expects       bool  // the client waits for 100 Continue
	tooLarge      bool  // the header was too large
	declared, got int64 // length of the body; declared is -1 when unknown
	inflow        inflow
	trailer       http.Header

	readBy, sendBy time.Time // deadlines; zero: none
}

// headers starts a request, or ends its body with trailers. c.mu is held.
func (c *conn) headers(ctx context.Context, frame *http2.MetaHeadersFrame) error {
	id := frame.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if st := c.streams[id]; st != nil {
		return st.trailers(frame)
	}
	if id <= c.lastID {
		if frame.StreamEnded() && len(frame.PseudoFields()) == 0 {
			// trailers of a request that has been answered
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
		}
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.lastID = id
	if c.closing {
		return nil // after GOAWAY: the client retries on another connection
	}
	if frame.HasPriority() && frame.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if c.crew.running >= int(c.s.options.MaxStreams) {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	st := &stream{
		c:          c,
		id:         id,
		ended:      frame.StreamEnded(),
		sendWindow: c.outflow.first,
		inflow:     newInflow(streamWindow),
	}
	st.changed.L = &c.mu
	ctx, st.cancel = context.WithCancel(ctx)
	if err := st.request(ctx, frame); err != nil {
		st.cancel()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol, Cause: err}
	}
	c.streams[id] = st
	c.begun(st)
	return nil
}

// trailers ends a body. c.mu is held.
func (st *stream) trailers(f *http2.MetaHeadersFrame) error {
	switch {
	case st.ended && st.answered && len(f.PseudoFields()) > 0:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	case st.ended:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	}
	if !f.StreamEnded() || len(f.PseudoFields()) > 0 {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	for _, hf := range f.RegularFields() {
		key := http.CanonicalHeaderKey(hf.Name)
		if _, announced := st.req.Trailer[key]; announced && httpguts.ValidTrailerHeader(key) {
			if st.trailer == nil {
				st.trailer = http.Header{}
			}
			st.trailer.Add(key, hf.Value)
		}
	}
	return st.bodyEnds()
}

// bodyEnds records the end of the request body. c.mu is held.
func (st *stream) bodyEnds() error {
	st.ended = true
	if st.declared >= 0 && st.got != st.declared {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	st.bodyErr = io.EOF
	st.changed.Broadcast()
	return nil
}

// data handles a DATA frame. c.mu is held.
func (c *conn) data(dataFrame *http2.DataFrame) error {
	size := int64(dataFrame.Length)
	data := dataFrame.Data()
	if !c.inflow.take(size) {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	st := c.streams[dataFrame.StreamID]
	if st == nil || st.ended {
		if dataFrame.StreamID > c.lastID {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.returnWindow(size)
		if st == nil && c.closing {
			return nil
		}
		return http2.StreamError{StreamID: dataFrame.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	if !st.inflow.take(size) {
		return http2.StreamError{StreamID: dataFrame.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.got += int64(len(data))
	if st.declared >= 0 && st.got > st.declared {
		c.returnWindow(size)
		return http2.StreamError{StreamID: dataFrame.StreamID, Code: http2.ErrCodeProtocol}
	}
	if st.closed {
		st.took(size)
	} else {
		st.took(size - int64(len(data))) // padding
		st.body.add(data, st.declared)
		st.changed.Broadcast()
	}
	if dataFrame.StreamEnded() {
		return st.bodyEnds()
	}
	return nil
}

// took returns n bytes to the windows. c.mu is held.
func (st *stream) took(n int64) {
	if n == 0 {
		return
	}
	st.c.returnWindow(n)
	if more := st.inflow.give(n); more > 0 && !st.ended && st.err == nil {
		st.c.control.window(st.id, more)
	}
}

// closeLocked ends the stream; the handler's next read or write fails, and its context is canceled. c.mu is held.
func (st *stream) closeLocked(err error) {
	if st.err != nil {
		return
	}
	st.err = err
	st.closed = true
	if st.bodyErr == nil || err != errFinished { //nolint:errorlint // never wrapped
		st.bodyErr = err
	}
	st.dropBody()
	delete(st.c.streams, st.id)
	st.cancel()
	st.changed.Broadcast()
}

// dropBody drops the unread data. c.mu is held.
func (st *stream) dropBody() {
	st.took(int64(st.body.size()))
	st.body = unread{}
}

// unread is the received part of a request's body that the handler has not read.
type unread struct {
	buf  []byte
	from int // the first unread byte in buf
}

func (u *unread) size() int { return len(u.buf) - u.from }

// add appends data. declared is the length of the whole body; not positive: it is unknown.
func (u *unread) add(data []byte, declared int64) {
	if u.buf == nil && declared > 0 {
		u.buf = make([]byte, 0, min(declared, streamWindow))
	}
	// move unread data to the front, so that the buffer does not grow
	if u.from > 0 && len(u.buf)+len(data) > cap(u.buf) {
		u.buf = u.buf[:copy(u.buf, u.buf[u.from:])]
		u.from = 0
	}
	u.buf = append(u.buf, data...)
}

func (u *unread) read(p []byte) int {
	n := copy(p, u.buf[u.from:])
	if u.from += n; u.from == len(u.buf) {
		u.buf = u.buf[:0]
		u.from = 0
	}
	return n
}

// body is the request body for the handler.
type body struct{ st *stream }

func (b body) Read(p []byte) (int, error) {
	st := b.st
	conn := st.c
	conn.mu.Lock()
	if st.expects && st.err == nil {
		st.expects = false
		conn.mu.Unlock()
		st.inform(http.StatusContinue, nil)
		conn.mu.Lock()
	}
	n, err := st.readLocked(p)
	said := conn.control.spoken.Load()
	conn.mu.Unlock()
	if said {
		conn.out.kick()
	}
	return n, err
}

func (st *stream) readLocked(p []byte) (int, error) {
	for st.body.size() == 0 || st.closed {
		switch {
		case st.closed && st.err == nil:
			return 0, http.ErrBodyReadAfterClose
		case st.bodyErr != nil:
			if st.trailer != nil {
				maps.Copy(st.req.Trailer, st.trailer)
			}
			return 0, st.bodyErr
		case late(st.readBy):
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		st.await(st.readBy)
	}
	n := st.body.read(p)
	st.took(int64(n))
	return n, nil
}

// Close discards the rest of the body.
func (b body) Close() error {
	c := b.st.c
	c.mu.Lock()
	b.st.closed = true
	b.st.dropBody()
	said := c.control.spoken.Load()
	c.mu.Unlock()
	if said {
		c.out.kick()
	}
	return nil
}

// await waits for a change, until by at most, if that is set. c.mu is held.
func (st *stream) await(by time.Time) {
	if !by.IsZero() {
		defer time.AfterFunc(time.Until(by), func() {
			st.c.mu.Lock()
			defer st.c.mu.Unlock()
			st.changed.Broadcast()
		}).Stop()
	}
	st.changed.Wait()
}

// late reports whether a deadline has passed.
func late(by time.Time) bool { return !by.IsZero() && !time.Now().Before(by) }

// readUntil sets the deadline for reads of the body; zero: none.
func (st *stream) readUntil(t time.Time) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.readBy = t
	st.changed.Broadcast()
}

// sendUntil sets the deadline for waits for the client's windows; zero: none.
func (st *stream) sendUntil(t time.Time) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.sendBy = t
	st.changed.Broadcast()
}

// abort resets a stream with an incomplete response.
func (st *stream) abort(err error) {
	c := st.c
	c.mu.Lock()
	if st.err == nil {
		c.control.reset(st.id, http2.ErrCodeInternal)
		st.closeLocked(err)
	}
	c.mu.Unlock()
	c.out.kick()
}
