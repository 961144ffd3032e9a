// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer speaks frames to a server, as no well-behaved client does.
type peer struct {
	t testing.TB
	*http2.Framer
	conn  *tls.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
}

// dial connects and shakes hands.
func dial(t testing.TB, h http.HandlerFunc, mine ...http2.Setting) *peer {
	t.Helper()
	ts, _ := serve(t, Options{MaxStreams: 10, WriteTimeout: patience}, h)
	return dialTo(t, ts.URL, mine...)
}

func dialTo(t testing.TB, url string, mine ...http2.Setting) *peer {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}} // a test's own server
	c, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	p := &peer{t: t, Framer: http2.NewFramer(c, c), conn: c.(*tls.Conn)} // tls.Dialer says so
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	_, err = io.WriteString(c, http2.ClientPreface)
	p.ok(err)
	p.ok(p.WriteSettings(mine...))
	return p
}

func (p *peer) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// request opens a stream.
func (p *peer) request(id uint32, end bool, fields ...string) {
	p.t.Helper()
	if len(fields) == 0 {
		fields = []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/"}
	}
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		p.ok(p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	p.ok(p.WriteHeaders(http2.HeadersFrameParam{
		StreamID:      id,
		BlockFragment: p.block.Bytes(),
		EndHeaders:    true,
		EndStream:     end,
	}))
}

// until reads frames up to one for which done holds, and describes what came on the way.
func (p *peer) until(done func(http2.Frame) bool) string {
	p.t.Helper()
	var seen []string
	for {
		f, err := p.ReadFrame()
		if err != nil {
			p.t.Fatalf("after %v: %v", seen, err)
		}
		seen = append(seen, describe(f))
		if done(f) {
			return strings.Join(seen, " ")
		}
	}
}

func describe(f http2.Frame) string {
	switch f := f.(type) {
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("reset(%d %v)", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("goaway(%v)", f.ErrCode)
	case *http2.MetaHeadersFrame:
		return fmt.Sprintf("headers(%d %s)", f.StreamID, f.PseudoValue("status"))
	}
	return f.Header().Type.String()
}

func isReset(id uint32, code http2.ErrCode) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		r, ok := f.(*http2.RSTStreamFrame)
		return ok && r.StreamID == id && r.ErrCode == code
	}
}

func goesAway(code http2.ErrCode) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		g, ok := f.(*http2.GoAwayFrame)
		return ok && g.ErrCode == code
	}
}

func nothing(http.ResponseWriter, *http.Request) {}

// TestMalformedRequests are refused alone: the connection lives on.
func TestMalformedRequests(t *testing.T) {
	peer := dial(t, nothing)
	id := uint32(1)
	for _, fields := range [][]string{
		{":method", "GET", ":scheme", "https", ":authority", "x"},
		{":method", "GET", ":scheme", "https", ":authority", "x", ":path", ""},
		{":method", "GET", ":scheme", "ftp", ":authority", "x", ":path", "/"},
		{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "no-slash"},
		{":scheme", "https", ":authority", "x", ":path", "/"},
		{":method", "GET", ":scheme", "https", ":path", "/", ":status", "200"},
		{":method", "GET", ":scheme", "https", ":path", "/", "connection", "close"},
		{":method", "GET", ":scheme", "https", ":path", "/", "transfer-encoding", "chunked"},
		{":method", "GET", ":scheme", "https", ":path", "/", "te", "gzip"},
		{":method", "GET", ":scheme", "https", ":path", "/", "Upper", "case"},
		{":method", "GET", ":scheme", "https", ":path", "/", "content-length", "5"},
		{":method", "GET", ":scheme", "https", ":path", "/", "content-length", "x"},
	} {
		peer.request(id, true, fields...)
		peer.until(isReset(id, http2.ErrCodeProtocol))
		id += 2
	}
	peer.request(id, true)
	peer.until(func(f http2.Frame) bool { return f.Header().StreamID == id && f.Header().Type == http2.FrameHeaders })
}

// TestBodyUnlikeItsLength is an error of the stream.
func TestBodyUnlikeItsLength(t *testing.T) {
	got := make(chan error, 2)
	p := dial(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		got <- err
	})
	fields := []string{":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/", "content-length", "4"}
	p.request(1, false, fields...)
	p.ok(p.WriteData(1, true, []byte("123")))
	p.until(isReset(1, http2.ErrCodeProtocol))
	p.request(3, false, fields...)
	p.ok(p.WriteData(3, false, []byte("12345")))
	p.until(isReset(3, http2.ErrCodeProtocol))
	for range 2 {
		if err := <-got; err == nil {
			t.Error("a body unlike its content-length passed for whole")
		}
	}
}

// TestBrokenConnections: the client learns why its connection ends.
func TestBrokenConnections(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(p *peer)
		code http2.ErrCode
	}{
		"even stream":            {func(p *peer) { p.request(2, true) }, http2.ErrCodeProtocol},
		"data on an idle stream": {func(p *peer) { p.ok(p.WriteData(5, true, nil)) }, http2.ErrCodeProtocol},
		"reset of an idle one": {
			func(p *peer) { p.ok(p.WriteRSTStream(5, http2.ErrCodeCancel)) }, http2.ErrCodeProtocol,
		},
		"window too large": {
			func(p *peer) { p.ok(p.WriteWindowUpdate(0, mostWindow)) }, http2.ErrCodeFlowControl,
		},
		"frame too large": {func(p *peer) {
			p.ok(p.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 1<<15)))
		}, http2.ErrCodeFrameSize},
		"stream number twice": {func(p *peer) {
			p.request(3, true)
			p.request(1, true)
		}, http2.ErrCodeProtocol},
		"broken header block": {func(p *peer) {
			p.ok(p.WriteHeaders(http2.HeadersFrameParam{
				StreamID:      1,
				BlockFragment: []byte{0xff, 0xff, 0xff},
				EndHeaders:    true,
				EndStream:     true,
			}))
		}, http2.ErrCodeCompression},
		"body beyond the window": {func(p *peer) {
			p.request(1, false, ":method", "POST", ":scheme", "https", ":path", "/")
			for range connWindow/defaultFrame + 1 {
				if p.WriteData(1, false, make([]byte, defaultFrame)) != nil {
					return // the server has hung up
				}
			}
		}, http2.ErrCodeFlowControl},
	} {
		t.Run(name, func(t *testing.T) {
			stay := make(chan struct{})
			defer close(stay)
			p := dial(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					select {
					case <-stay:
					case <-r.Context().Done():
					}
				}
			})
			c.do(p)
			if name == "body beyond the window" { // the stream's own window is smaller, and breaks first
				p.until(func(f http2.Frame) bool { return isReset(1, c.code)(f) || goesAway(c.code)(f) })
				return
			}
			p.until(goesAway(c.code))
		})
	}
}

// TestWindowsOfTheClient are respected, as they grow and shrink.
func TestWindowsOfTheClient(t *testing.T) {
	peer := dial(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) },
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	peer.request(1, true)
	size := 0
	ended := false
	count := func(want int) {
		t.Helper()
		peer.until(func(f http2.Frame) bool {
			if d, ok := f.(*http2.DataFrame); ok {
				size += len(d.Data())
				ended = ended || d.StreamEnded()
			}
			return size == want
		})
	}
	count(10)
	peer.ok(peer.WriteWindowUpdate(1, 15))
	count(25)
	peer.ok(peer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 50}))
	count(65)
	if ended {
		t.Error("the stream ended before its body")
	}
	peer.ok(peer.WriteWindowUpdate(1, 1000))
	count(100)
	if !ended {
		t.Error("the last frame does not end the stream")
	}
}

// TestClosedWindow: an answer that its client never lets through is given up.
func TestClosedWindow(t *testing.T) {
	ts, _ := serve(t, Options{WriteTimeout: 5 * time.Second}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 100))
	})
	p := dialTo(t, ts.URL, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	p.request(1, true)
	p.until(isReset(1, http2.ErrCodeInternal))
	p.ok(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}))
	p.request(3, true)
	p.until(func(f http2.Frame) bool {
		d, ok := f.(*http2.DataFrame)
		return ok && d.StreamID == 3 && d.StreamEnded()
	})
}

// TestTooManyStreams are refused, also when the client has reset those before: their handlers still run.
func TestTooManyStreams(t *testing.T) {
	stay := make(chan struct{})
	peer := dial(t, func(http.ResponseWriter, *http.Request) { <-stay })
	id := uint32(1)
	for range 10 {
		peer.request(id, true)
		peer.ok(peer.WriteRSTStream(id, http2.ErrCodeCancel))
		id += 2
	}
	peer.request(id, true)
	peer.until(isReset(id, http2.ErrCodeRefusedStream))
	close(stay)
	for code := "reset"; code == "reset"; {
		id += 2
		peer.request(id, true)
		peer.until(func(f http2.Frame) bool {
			if f.Header().StreamID != id {
				return false
			}
			if f.Header().Type == http2.FrameHeaders {
				code = "answered"
			}
			return true
		})
	}
}

// TestFloods: who makes the server answer and never reads is cut off.
func TestFloods(t *testing.T) {
	for name, flood := range map[string]func(p *peer) error{
		"pings":    func(p *peer) error { return p.WritePing(false, [8]byte{}) },
		"settings": func(p *peer) error { return p.WriteSettings() },
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, nothing)
			for range 10_000_000 {
				if flood(p) != nil {
					return
				}
			}
			t.Error("ten million frames and the server still listens")
		})
	}
}

// TestPings are answered whatever else goes on: during a body that no one reads and an answer for which there is no
// window, and although the next frame has come in part.
func TestPings(t *testing.T) {
	stay := make(chan struct{})
	peer := dial(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-stay
			return
		}
		_, _ = w.Write(make([]byte, 1<<20)) // ends with the connection
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	defer close(stay)
	peer.request(1, true)
	peer.request(3, false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/")
	for range streamWindow / defaultFrame {
		peer.ok(peer.WriteData(3, false, make([]byte, defaultFrame)))
	}
	header := appendFrame(nil, http2.FramePing, 0, 0, 8)
	for i, part := range [][]byte{nil, header[:1], header, append(header, 1, 2, 3, 4)} {
		ping := append(appendFrame(nil, http2.FramePing, 0, 0, 8), 'p', 'i', 'n', 'g', 0, 0, 0, byte(i))
		_, err := peer.conn.Write(append(ping, part...))
		peer.ok(err)
		answered := func(f http2.Frame) bool {
			a, ok := f.(*http2.PingFrame)
			return ok && a.IsAck() && a.Data[7] == byte(i)
		}
		peer.until(answered)
		if len(part) == 0 {
			continue
		}
		rest := append(append([]byte{}, header...), 1, 2, 3, 4, 0, 0, 0, byte(i))[len(part):]
		_, err = peer.conn.Write(rest)
		peer.ok(err)
		peer.until(answered)
	}
}

// TestRequestsAfterGoAway are left alone, bodies and all, while those before are finished.
func TestRequestsAfterGoAway(t *testing.T) {
	begun := make(chan struct{})
	goOn := make(chan struct{})
	ts, _ := serve(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-goOn
		_, _ = io.WriteString(w, "done")
	})
	peer := dialTo(t, ts.URL)
	peer.request(1, true)
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- ts.Config.Shutdown(t.Context()) }() // ends with the connection
	peer.until(goesAway(http2.ErrCodeNo))
	peer.request(3, false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/")
	peer.ok(peer.WriteData(3, true, []byte("body")))
	peer.ok(peer.WritePing(false, [8]byte{1}))
	peer.until(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	close(goOn)
	peer.until(func(f http2.Frame) bool {
		d, ok := f.(*http2.DataFrame)
		return ok && d.StreamID == 1 && string(d.Data()) == "done"
	})
	_ = peer.conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestHeaderTooLarge is answered with 431.
func TestHeaderTooLarge(t *testing.T) {
	ts, _ := serve(t, Options{}, nothing, func(hs *http.Server) { hs.MaxHeaderBytes = 1000 })
	p := dialTo(t, ts.URL)
	fields := []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/"}
	for i := range 20 {
		fields = append(fields, fmt.Sprintf("x-%d", i), strings.Repeat("x", 70))
	}
	p.request(1, true, fields...)
	p.until(func(f http2.Frame) bool { return describe(f) == "headers(1 431)" })
}

// TestLiteralFields compares our literals with what a decoder reads.
func TestLiteralFields(t *testing.T) {
	for _, f := range []field{{Name: "audit-id", Value: strings.Repeat("v", 300)}, {Name: "date", Value: "d"}, {
		Name:  "content-length",
		Value: "",
	}} {
		b := appendLiteral(nil, unlikeBefore[f.Name], f)
		got, err := hpack.NewDecoder(4096, nil).DecodeFull(b)
		if err != nil || len(got) != 1 || got[0].Name != f.Name || got[0].Value != f.Value {
			t.Errorf("%v came back as %v, %v", f, got, err)
		}
	}
}

// BenchmarkRequest is a small POST on a connection of its own, client included, and the same with the server that
// net/http brings.
func BenchmarkRequest(b *testing.B) {
	answer := make([]byte, 2<<10)
	h := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(answer)
	}
	for _, name := range []string{"h2", "net-http"} {
		b.Run(name, func(b *testing.B) {
			var ts *httptest.Server
			if name == "h2" {
				ts, _ = serve(b, Options{}, h)
			} else {
				ts = httptest.NewUnstartedServer(http.HandlerFunc(h))
				ts.EnableHTTP2 = true
				ts.StartTLS()
				b.Cleanup(ts.Close)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				t := ts.Client().Transport.(*http.Transport).Clone() // httptest makes it
				defer t.CloseIdleConnections()
				for c := (&http.Client{Transport: t}); pb.Next(); {
					do(b, c, http.MethodPost, ts.URL, bytes.NewReader(answer))
				}
			})
		})
	}
}

// TestManyHeaderFields: the time that a header takes follows its size, and there is an end to how many fields it may
// have. Cookies, which HTTP/2 clients send one by one, come as one field.
func TestManyHeaderFields(t *testing.T) {
	got := make(chan string, 1)
	peer := dial(t, func(_ http.ResponseWriter, r *http.Request) {
		got <- strings.Join(r.Header.Values("Cookie"), "|")
	})
	fields := []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/"}
	with := func(n int) []string {
		out := slices.Clone(fields)
		for range n {
			out = append(out, "cookie", "a")
		}
		return out
	}
	peer.request(1, true, with(3)...)
	if cookies := <-got; cookies != "a; a; a" {
		t.Errorf("three cookies arrived as %q", cookies)
	}
	peer.request(3, true, with(maxFields)...)
	peer.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamID == 3 && h.PseudoValue("status") == "431"
	})
	most := &http2.MetaHeadersFrame{HeadersFrame: &http2.HeadersFrame{}}
	for range maxFields {
		most.Fields = append(most.Fields, hpack.HeaderField{Name: "cookie", Value: "a"})
	}
	one := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := headerOf(most); err != nil {
				b.Fatal(err)
			}
		}
	})
	if size := one.AllocedBytesPerOp(); size > 1<<20 {
		t.Errorf("the header of %d cookies of one byte takes %d bytes", maxFields, size)
	}
}

// TestManyTrailers: what a request announces is bounded.
func TestManyTrailers(t *testing.T) {
	var names strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&names, "X-%d,", i)
	}
	if n := len(announced([]string{names.String()})); n != maxTrailers {
		t.Errorf("%d of 1000 announced trailers are kept, want %d", n, maxTrailers)
	}
}
