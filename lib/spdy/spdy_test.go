// SPDX-License-Identifier: Apache-2.0

package spdy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/moby/spdystream/spdy"
)

// sink is a connection whose writes are kept.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Read(p []byte) (int, error)  { return s.Buffer.Read(p) }
func (s *sink) Write(p []byte) (int, error) { return s.Buffer.Write(p) }

// sent is what a peer sends.
func sent(t *testing.T, frames ...spdy.Frame) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	f, err := spdy.NewFramer(&b, &b)
	if err != nil {
		t.Fatal(err)
	}
	for _, frame := range frames {
		if err := f.WriteFrame(frame); err != nil {
			t.Fatal(err)
		}
	}
	return &b
}

func syn(id spdy.StreamId, headers http.Header) *spdy.SynStreamFrame {
	return &spdy.SynStreamFrame{StreamId: id, Headers: headers}
}

func bounded(t *testing.T, from io.Reader, streams int) *Conn {
	t.Helper()
	c, err := New(&sink{}, from, streams)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// read returns the frames that pass, and the error after them.
func read(t *testing.T, c io.Reader) (frames []spdy.Frame, err error) {
	t.Helper()
	f, err := spdy.NewFramer(io.Discard, c)
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return frames, err
		}
		frames = append(frames, frame)
	}
}

// TestLargeDataIsSplit: the reader never has to keep a large frame, and gets the same bytes and one end of the stream.
func TestLargeDataIsSplit(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	frames, err := read(t, bounded(t, sent(t,
		syn(1, http.Header{"Streamtype": {"stdin"}}),
		&spdy.DataFrame{StreamId: 1, Flags: spdy.DataFlagFin, Data: data},
		&spdy.DataFrame{StreamId: 1, Flags: spdy.DataFlagFin},
		&spdy.PingFrame{Id: 1},
	), 1))
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if got := frames[0].(*spdy.SynStreamFrame).Headers.Get("streamType"); got != "stdin" {
		t.Errorf("the header is %q", got)
	}
	if _, ok := frames[len(frames)-1].(*spdy.PingFrame); !ok {
		t.Errorf("the last frame is a %T", frames[len(frames)-1])
	}
	var got []byte
	parts := frames[1 : len(frames)-1]
	for i, f := range parts {
		d := f.(*spdy.DataFrame)
		got = append(got, d.Data...)
		if ends := i >= len(parts)-2; len(d.Data) > maxData || (d.Flags == spdy.DataFlagFin) != ends {
			t.Errorf("frame %d has %d bytes, flags %d", i, len(d.Data), d.Flags)
		}
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes came, want %d", len(got), len(data))
	}
}

// TestHeadersAreBounded: a header of a megabyte takes a kilobyte on the wire, so its size there says nothing.
func TestHeadersAreBounded(t *testing.T) {
	many := http.Header{}
	for i := range maxHeaders + 1 {
		many[strings.Repeat("x", i+1)] = []string{"y"}
	}
	for name, h := range map[string]http.Header{
		"large": {"X": {strings.Repeat("a", 1<<20-1)}},
		"many":  many,
	} {
		frames, err := read(t, bounded(t, sent(t, syn(1, http.Header{"A": {"b"}}), syn(3, h)), 5))
		if len(frames) != 1 || !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %d frames passed, then %v", name, len(frames), err)
		}
	}
	huge := []byte{0x80, 3, 0, 4, 0, 0xff, 0xff, 0xff}
	if _, err := read(t, bounded(t, bytes.NewReader(huge), 5)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a control frame of 16 MiB: %v", err)
	}
}

// TestOpenStreamsAreBounded: a stream counts until both sides have ended it or one has reset it.
func TestOpenStreamsAreBounded(t *testing.T) {
	var frames []spdy.Frame
	for i := range 3 {
		frames = append(frames, syn(spdy.StreamId(2*i+1), http.Header{"A": {"b"}}))
	}
	if passed, err := read(t, bounded(t, sent(t, frames...), 2)); len(passed) != 2 || err == nil {
		t.Errorf("%d streams of 2 passed, then %v", len(passed), err)
	}
	if passed, err := read(t, bounded(t, sent(t, frames[0]), 0)); len(passed) != 0 || errors.Is(err, io.EOF) {
		t.Errorf("a peer that opens none opened %d, %v", len(passed), err)
	}

	from := sent(t, frames[0], frames[1], &spdy.DataFrame{StreamId: 1, Flags: spdy.DataFlagFin})
	c := bounded(t, from, 2)
	if passed, err := read(t, c); len(passed) != 3 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d frames passed, then %v", len(passed), err)
	}
	if len(c.open) != 2 {
		t.Errorf("%d streams are open after the peer's end, want 2", len(c.open))
	}
	own := sent(t,
		&spdy.SynReplyFrame{StreamId: 1, Headers: http.Header{}},
		&spdy.DataFrame{StreamId: 1, Data: []byte("some data")},
		&spdy.DataFrame{StreamId: 1, Flags: spdy.DataFlagFin},
		&spdy.RstStreamFrame{StreamId: 3, Status: spdy.Cancel},
	).Bytes()
	for i := range own { // in the smallest pieces
		if _, err := c.Write(own[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.open) != 0 {
		t.Errorf("%d streams are open after this side's end, want none", len(c.open))
	}
}
