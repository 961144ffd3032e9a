// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	// connWindow and streamWindow are the receive windows of a connection and of a stream, in bytes.
	connWindow, streamWindow = 1 << 20, 256 << 10
	defaultWindow            = 65535 // initial window of HTTP/2
	mostWindow               = 1<<31 - 1
	defaultFrame             = 16 << 10
	headerTable              = 4096
	frameHeader              = 9 // bytes
	prefaceTimeout           = 10 * time.Second
	// mostSettings bounds the settings in one frame: each may affect every stream.
	mostSettings = 100
	// Rate limit for streams that a client resets before the response, against rapid reset attacks; beyond it the
	// connection is closed. An ordinary client that ends all its watches resets as many streams as it may have open.
	resetsAtOnce, resetsPerSecond = 2000, 200
	// mostControl bounds the queued control frames for a client that causes them and does not read.
	mostControl = 64 << 10
	// mostIdle is the number of idle handler goroutines that a connection keeps for further requests.
	mostIdle = 4
	// lingering is the time that a client has to close the connection after GOAWAY.
	lingering = time.Second
	// mostBye bounds the bytes that are read from a client after GOAWAY.
	mostBye = 4 << 20
)

// conn is one connection.
type conn struct {
	s       *server
	tc      *tls.Conn
	tls     tls.ConnectionState
	remote  string
	handler http.Handler
	input   input // only serve reads
	out     writer
	workers sync.WaitGroup

	mu      sync.Mutex
	streams map[uint32]*stream
	lastID  uint32 // the newest stream of the client
	goneID  uint32 // the newest served stream after GOAWAY
	crew    crew
	err     error // why the connection ended
	closing bool  // GOAWAY was sent
	inflow  inflow
	outflow outflow
	control control
	resets  budget
	quiet   quiet
}

func newConn(s *server, tc *tls.Conn, h http.Handler) *conn {
	c := &conn{
		s:       s,
		tc:      tc,
		tls:     tc.ConnectionState(),
		remote:  tc.RemoteAddr().String(),
		handler: h,
		input:   newInput(tc, s.maxHeader()),
		streams: map[uint32]*stream{},
		inflow:  newInflow(connWindow),
		outflow: outflow{window: defaultWindow, first: defaultWindow, frame: defaultFrame},
		resets:  budget{burst: resetsAtOnce, rate: resetsPerSecond},
	}
	c.quiet = quiet{after: s.options.IdleTimeout, check: c.checkIdle}
	c.out.init(c)
	return c
}

// maxHeader returns the maximum size of a request's header, as HTTP/2 counts it.
func (s *server) maxHeader() uint32 {
	n := s.hs.MaxHeaderBytes
	if n <= 0 {
		n = http.DefaultMaxHeaderBytes
	}
	return uint32(n + 10*32) // a configured size; 32 bytes are counted for each field
}

// serve reads frames until the connection ends.
func (c *conn) serve(ctx context.Context) {
	err := c.begin()
	for err == nil {
		var f http2.Frame
		if f, err = c.input.ReadFrame(); err == nil {
			err = c.take(ctx, f)
		}
		if err != nil {
			err = c.survive(err)
		}
		if c.control.spoken.Load() && !c.input.follows() && c.out.kicking.CompareAndSwap(false, true) {
			c.workers.Go(func() { // in a goroutine: the write may block
				// before the queue is read: a frame that is queued from now on needs a kick of its own
				c.out.kicking.Store(false)
				c.out.kick()
			})
		}
	}
	c.end(err)
}

// begin reads the client's preface and sends the server's.
func (c *conn) begin() error {
	c.mu.Lock()
	c.control.add(http2.FrameSettings, 0, 0, settings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.s.options.MaxStreams},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.s.maxHeader()},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
	))
	c.control.window(0, connWindow-defaultWindow)
	c.quiet.begin()
	c.mu.Unlock()
	c.out.kick()
	if err := c.tc.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		return fmt.Errorf("read preface: %w", err)
	}
	if err := c.input.readPreface(); err != nil {
		return err
	}
	f, err := c.input.ReadFrame()
	if err != nil {
		return c.survive(err)
	}
	if err := c.tc.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read preface: %w", err)
	}
	first, ok := f.(*http2.SettingsFrame)
	if !ok {
		return c.survive(http2.ConnectionError(http2.ErrCodeProtocol))
	}
	if err := c.settings(first); err != nil {
		return c.survive(err)
	}
	c.mu.Lock()
	closing := c.closing
	c.mu.Unlock()
	c.out.kick()
	if closing {
		c.hangUp() // again, because the deadline was changed meanwhile
	}
	return nil
}

func settings(list ...http2.Setting) []byte {
	var b []byte
	for _, s := range list {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(s.ID)), s.Val)
	}
	return b
}

// take handles a frame, and ends the connection if too many control frames are queued.
func (c *conn) take(ctx context.Context, f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.act(ctx, f); err != nil {
		return err
	}
	if c.control.tooMany() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

func (c *conn) act(ctx context.Context, f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return c.headers(ctx, f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		return c.settingsLocked(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			c.control.add(http2.FramePing, http2.FlagPingAck, 0, f.Data[:])
		}
	case *http2.RSTStreamFrame:
		if f.StreamID > c.lastID {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if st := c.streams[f.StreamID]; st != nil {
			st.closeLocked(errGone)
		}
		return c.tookBack()
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// tookBack counts a stream that the client has reset, or that was never started, for the rate limit. c.mu is held.
func (c *conn) tookBack() error {
	if !c.resets.spend() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// survive handles an error: a stream error resets the stream; for others it sends GOAWAY with the error code and ends
// the connection.
func (c *conn) survive(err error) error {
	var se http2.StreamError
	var ce http2.ConnectionError
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.As(err, &se):
		var often error
		st := c.streams[se.StreamID]
		if st != nil {
			st.closeLocked(se)
		}
		// frames that were in transit when the stream ended are ignored
		if st != nil || se.Code == http2.ErrCodeRefusedStream {
			often = c.tookBack()
		}
		if se.StreamID > c.lastID && se.StreamID%2 == 1 {
			c.lastID = se.StreamID // its header was invalid
		}
		c.control.reset(se.StreamID, se.Code)
		if often != nil || c.control.tooMany() {
			c.queueGoAway(http2.ErrCodeEnhanceYourCalm)
			return errors.Join(errTold, err)
		}
		return nil
	case errors.As(err, &ce):
		c.queueGoAway(http2.ErrCode(ce))
	case errors.Is(err, http2.ErrFrameTooLarge):
		c.queueGoAway(http2.ErrCodeFrameSize)
	default:
		return err
	}
	return errors.Join(errTold, err)
}

// errTold ends a connection after GOAWAY with an error code.
var errTold = errors.New("protocol violated")

// bye writes the remaining frames and reads for a moment before the close: closing a socket with unread data would
// discard them.
func (c *conn) bye() {
	c.out.last()
	c.hangUp()
	_, _ = io.CopyN(io.Discard, c.tc, mostBye) // any error ends it
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settingsLocked(f)
}

func (c *conn) settingsLocked(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > mostSettings {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if err := f.ForeachSetting(c.setting); err != nil {
		return err
	}
	c.control.add(http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
	return nil
}

func (c *conn) setting(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.out.table.Store(s.Val)
	case http2.SettingMaxFrameSize:
		c.outflow.frame = int(s.Val)
	case http2.SettingInitialWindowSize:
		change := int64(s.Val) - c.outflow.first
		c.outflow.first = int64(s.Val)
		for _, st := range c.streams {
			if st.sendWindow += change; st.sendWindow > mostWindow {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
			st.changed.Broadcast()
		}
	}
	return nil
}

func (c *conn) windowUpdate(frame *http2.WindowUpdateFrame) error {
	if frame.StreamID == 0 {
		if c.outflow.window += int64(frame.Increment); c.outflow.window > mostWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if c.outflow.waiting > 0 {
			for _, st := range c.streams {
				st.changed.Broadcast()
			}
		}
		return nil
	}
	st := c.streams[frame.StreamID]
	if st == nil {
		if frame.StreamID > c.lastID {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if st.sendWindow += int64(frame.Increment); st.sendWindow > mostWindow {
		return http2.StreamError{StreamID: frame.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.changed.Broadcast()
	return nil
}

// returnWindow returns n bytes to the client's window, with a frame when they are enough. c.mu is held.
func (c *conn) returnWindow(n int64) {
	if more := c.inflow.give(n); more > 0 {
		c.control.window(0, more)
	}
}

// goAway sends GOAWAY: the client opens no more streams, and the connection ends when the last one is done.
func (c *conn) goAway() {
	c.mu.Lock()
	if c.closing || c.err != nil {
		c.mu.Unlock()
		return
	}
	c.goneID = c.lastID
	c.closing = true
	c.queueGoAway(http2.ErrCodeNo)
	done := c.crew.running == 0
	c.mu.Unlock()
	c.out.kick()
	if done {
		c.hangUp()
	}
}

// hangUp closes the write side, and gives the client a moment to close its side.
func (c *conn) hangUp() {
	_ = c.tc.SetReadDeadline(time.Now().Add(lingering)) // a broken connection has ended already
	_ = c.tc.CloseWrite()
}

// checkIdle ends the connection after the idle timeout, or sets the timer again.
func (c *conn) checkIdle() {
	c.mu.Lock()
	busy := c.crew.running > 0 || c.err != nil
	if busy {
		c.quiet.rest()
	}
	over := !busy && c.quiet.over()
	c.mu.Unlock()
	if over {
		c.goAway()
	}
}

// end closes the connection and waits for its handlers.
func (c *conn) end(err error) {
	if errors.Is(err, errTold) {
		c.bye()
	}
	c.fail(err)
	c.mu.Lock()
	c.quiet.stop()
	for _, st := range c.streams {
		st.closeLocked(c.err)
	}
	c.crew.dismiss()
	c.mu.Unlock()
	c.workers.Wait()
}

// fail closes the connection with an error.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = fmt.Errorf("connection ended: %w", err)
	}
	c.mu.Unlock()
	_ = c.tc.Close() // there is no one to return the error to
}
