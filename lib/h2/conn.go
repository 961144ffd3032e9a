// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
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
	"golang.org/x/net/http2/hpack"
)

const (
	// connWindow and streamWindow are how much of request bodies a client may send before handlers have read it, in bytes.
	connWindow, streamWindow = 1 << 20, 256 << 10
	defaultWindow            = 65535 // of a connection and its streams before anything is said
	mostWindow               = 1<<31 - 1
	defaultFrame             = 16 << 10
	headerTable              = 4096
	frameHeader              = 9 // bytes
	prefaceTimeout           = 10 * time.Second
	// mostSettings bounds how many settings one frame may have: each may concern every stream.
	mostSettings = 100
	// A client may take back so many requests before their answers at once, and so many a second more: who makes handlers begin what nobody
	// waits for is told to go. An ordinary client that ends all its watches takes back as many as it may have open.
	resetsAtOnce, resetsPerSecond = 2000, 200
	// mostControl bounds what is queued for a client that makes us answer and does not read.
	mostControl = 64 << 10
	// mostIdle is how many handler goroutines a connection keeps for its next requests.
	mostIdle = 4
	// lingering is how long a client has to hang up after it was told that the connection ends.
	lingering = time.Second
	// mostBye bounds what is read from a client that was told to go.
	mostBye = 4 << 20
)

// conn is one connection.
type conn struct {
	s       *server
	tc      *tls.Conn
	tls     tls.ConnectionState
	remote  string
	handler http.Handler
	in      *bufio.Reader
	framer  *http2.Framer
	out     writer
	workers sync.WaitGroup

	mu      sync.Mutex
	streams map[uint32]*stream
	lastID  uint32 // the newest stream of the client
	goneID  uint32 // the newest that is served, once the client has been told to go
	running int    // handlers; a stream that was reset counts until its handler is done
	idle    []chan *stream
	err     error // why the connection ended
	closing bool  // the client has been told to go
	// Windows: what we may send, what each new stream may send, what the client may still send, and what it could have back.
	sendWindow, firstWindow int64
	recvWindow, unreturned  int64
	maxFrame                int
	waiting                 int // writers that wait for a window
	control                 []byte
	resets                  float64 // what of resetsAtOnce was used up at resetAt
	resetAt                 time.Time
	idleSince               time.Time
	timer                   *time.Timer // for IdleTimeout; nil when none is running
}

func newConn(s *server, tc *tls.Conn, h http.Handler) *conn {
	c := &conn{
		s: s, tc: tc, tls: tc.ConnectionState(), remote: tc.RemoteAddr().String(), handler: h, in: bufio.NewReaderSize(tc, 4<<10), streams: map[uint32]*stream{},
		sendWindow: defaultWindow, firstWindow: defaultWindow, recvWindow: connWindow, maxFrame: defaultFrame,
	}
	c.framer = http2.NewFramer(io.Discard, c.in)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	c.framer.MaxHeaderListSize = c.maxHeader()
	c.framer.SetMaxReadFrameSize(defaultFrame)
	c.framer.SetReuseFrames()
	c.out.init(c)
	return c
}

// maxHeader is how large a request's header may be, as HTTP/2 counts.
func (c *conn) maxHeader() uint32 {
	n := c.s.hs.MaxHeaderBytes
	if n <= 0 {
		n = http.DefaultMaxHeaderBytes
	}
	return uint32(n + 10*32) //nolint:gosec // a configured size; 32 bytes are counted for each field
}

// serve reads frames until the connection ends.
func (c *conn) serve(ctx context.Context) {
	err := c.begin()
	for err == nil {
		var f http2.Frame
		if f, err = c.framer.ReadFrame(); err == nil {
			err = c.take(ctx, f)
		}
		if err != nil {
			err = c.survive(err)
		}
		if c.out.spoken.Load() && !c.follows() && c.out.kicking.CompareAndSwap(false, true) {
			c.workers.Go(func() { // not here: the client may take nothing for a while
				c.out.kicking.Store(false) // before the frames are looked for: who speaks from now on is not heard for sure
				c.out.kick()
			})
		}
	}
	c.end(err)
}

// follows tells that the next frame is here already, so that what there is to say can wait for what it adds. Of a frame that is here in
// part the rest may be long in coming.
func (c *conn) follows() bool {
	n := c.in.Buffered()
	if n < frameHeader {
		return false
	}
	b, err := c.in.Peek(frameHeader)
	return err == nil && n-frameHeader >= int(b[0])<<16|int(b[1])<<8|int(b[2])
}

// begin reads the client's preface and says ours.
func (c *conn) begin() error {
	c.mu.Lock()
	c.queue(http2.FrameSettings, 0, 0, settings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.s.options.MaxStreams},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.maxHeader()},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
	))
	c.queueWindow(0, connWindow-defaultWindow)
	c.becameIdleLocked()
	c.mu.Unlock()
	c.out.kick()
	if err := c.tc.SetReadDeadline(time.Now().Add(prefaceTimeout)); err != nil {
		return fmt.Errorf("read preface: %w", err)
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.in, preface); err != nil {
		return fmt.Errorf("read preface: %w", err)
	}
	if string(preface) != http2.ClientPreface {
		return fmt.Errorf("read preface: %q", preface)
	}
	f, err := c.framer.ReadFrame()
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
		c.hangUp() // once more: the deadline was another for a moment
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

// take acts on a frame, and sees to it that nobody makes us answer for ever without reading.
func (c *conn) take(ctx context.Context, f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.act(ctx, f); err != nil {
		return err
	}
	if len(c.control) > mostControl {
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
			c.queue(http2.FramePing, http2.FlagPingAck, 0, f.Data[:])
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

// tookBack notes a stream that ended by its client's doing, or never began. c.mu is held.
func (c *conn) tookBack() error {
	now := time.Now()
	c.resets = max(0, c.resets-now.Sub(c.resetAt).Seconds()*resetsPerSecond) + 1
	c.resetAt = now
	if c.resets > resetsAtOnce {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// survive turns what is wrong with one stream into its reset, and tells the client why the connection ends otherwise.
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
		if st != nil || se.Code == http2.ErrCodeRefusedStream { // not: what was on its way when the stream ended
			often = c.tookBack()
		}
		if se.StreamID > c.lastID && se.StreamID%2 == 1 {
			c.lastID = se.StreamID // its header was not good enough to become a request
		}
		c.queueReset(se.StreamID, se.Code)
		if often != nil || len(c.control) > mostControl {
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

// errTold ends connections whose clients are told why.
var errTold = errors.New("protocol violated")

// bye writes what is left, and gives the client a moment to read it: closing with something unread would take it back.
func (c *conn) bye() {
	c.out.last()
	c.hangUp()
	_, _ = io.CopyN(io.Discard, c.tc, mostBye) // whatever ends it
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
	c.queue(http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
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
		c.maxFrame = int(s.Val)
	case http2.SettingInitialWindowSize:
		change := int64(s.Val) - c.firstWindow
		c.firstWindow = int64(s.Val)
		for _, st := range c.streams {
			if st.sendWindow += change; st.sendWindow > mostWindow {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
			st.changed.Broadcast()
		}
	}
	return nil
}

func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > mostWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if c.waiting > 0 {
			for _, st := range c.streams {
				st.changed.Broadcast()
			}
		}
		return nil
	}
	st := c.streams[f.StreamID]
	if st == nil {
		if f.StreamID > c.lastID {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if st.sendWindow += int64(f.Increment); st.sendWindow > mostWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.changed.Broadcast()
	return nil
}

// returnWindow lets the client send n bytes more, told when it is worth a frame. c.mu is held.
func (c *conn) returnWindow(n int64) {
	if c.unreturned += n; c.unreturned >= connWindow/2 {
		c.queueWindow(0, c.unreturned)
		c.recvWindow += c.unreturned
		c.unreturned = 0
	}
}

// goAway tells the client to open no more streams here; the connection ends when the last one is done.
func (c *conn) goAway() {
	c.mu.Lock()
	if c.closing || c.err != nil {
		c.mu.Unlock()
		return
	}
	c.goneID = c.lastID
	c.closing = true
	c.queueGoAway(http2.ErrCodeNo)
	done := c.running == 0
	c.mu.Unlock()
	c.out.kick()
	if done {
		c.hangUp()
	}
}

// hangUp says that nothing more will come, and gives the client a moment to do the same.
func (c *conn) hangUp() {
	_ = c.tc.SetReadDeadline(time.Now().Add(lingering)) // a connection that is broken already needs no end
	_ = c.tc.CloseWrite()
}

// becameIdleLocked starts the time after which a connection without requests ends. c.mu is held.
func (c *conn) becameIdleLocked() {
	if c.s.options.IdleTimeout <= 0 {
		return
	}
	c.idleSince = time.Now()
	if c.timer == nil {
		c.timer = time.AfterFunc(c.s.options.IdleTimeout, c.checkIdle)
	}
}

// checkIdle ends the connection when it has been idle for long, or looks again when it could have been.
func (c *conn) checkIdle() {
	c.mu.Lock()
	if c.running > 0 || c.err != nil {
		c.timer = nil
		c.mu.Unlock()
		return
	}
	if left := c.s.options.IdleTimeout - time.Since(c.idleSince); left > 0 {
		c.timer.Reset(left)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.goAway()
}

// end closes the connection and waits for its handlers.
func (c *conn) end(err error) {
	if errors.Is(err, errTold) {
		c.bye()
	}
	c.fail(err)
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, st := range c.streams {
		st.closeLocked(c.err)
	}
	for _, ch := range c.idle {
		close(ch)
	}
	c.idle = nil
	c.mu.Unlock()
	c.workers.Wait()
}

// fail ends the connection, from whichever side.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = fmt.Errorf("connection ended: %w", err)
	}
	c.mu.Unlock()
	_ = c.tc.Close() // there is nobody left to be told
}

// begun starts a handler for st. c.mu is held.
func (c *conn) begun(st *stream) {
	c.running++
	if n := len(c.idle); n > 0 {
		ch := c.idle[n-1]
		c.idle = c.idle[:n-1]
		ch <- st
		return
	}
	c.workers.Go(func() { c.work(st) })
}

// work runs handlers, one after the other.
func (c *conn) work(st *stream) {
	next := make(chan *stream, 1)
	for st != nil {
		c.handle(st)
		if !c.rest(st, next) {
			return
		}
		st = <-next
	}
}

// rest ends a stream, and waits for the next request if few do; there is none when next is closed.
func (c *conn) rest(st *stream, next chan *stream) bool {
	c.mu.Lock()
	if st.err == nil && !st.ended {
		c.queueReset(st.id, http2.ErrCodeNo) // the rest of the body is not wanted
	}
	st.closeLocked(errFinished)
	c.running--
	wait := c.err == nil && !c.closing && len(c.idle) < mostIdle
	if wait {
		c.idle = append(c.idle, next)
	}
	hangUp := false
	if c.running == 0 {
		c.becameIdleLocked()
		hangUp = c.closing && c.err == nil
	}
	said := len(c.control) > 0
	c.mu.Unlock()
	if said {
		c.out.kick()
	}
	if hangUp {
		c.hangUp()
	}
	return wait
}
