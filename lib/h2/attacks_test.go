// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"keelson/lib/waittest"
)

const (
	// mostHeld is how much memory an attack may make a connection hold, the attacker's own included.
	mostHeld = 8 << 20
	// attackStreams is how many requests the attacked server takes at once.
	attackStreams = 10
)

// attacked is a server under attack, with what it costs.
type attacked struct {
	*peer
	client         *http.Client // another one
	url            string
	begun, running atomic.Int64 // handlers
	goroutines     int          // before
	held           uint64
}

// attack connects to a server whose handlers do handlerFunc.
func attack(t *testing.T, o Options, handlerFunc http.HandlerFunc, mine ...http2.Setting) *attacked {
	t.Helper()
	a := &attacked{}
	o.MaxStreams = attackStreams
	ts, client := serve(t, o, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		a.begun.Add(1)
		a.running.Add(1)
		defer a.running.Add(-1)
		handlerFunc(w, r)
	}, func(hs *http.Server) { hs.MaxHeaderBytes = 256 << 10 })
	a.client = client
	a.url = ts.URL + "/health"
	do(t, client, http.MethodGet, a.url, nil) // its connection stays
	a.goroutines = runtime.NumGoroutine()
	a.held = heap()
	a.peer = dialTo(t, ts.URL, mine...)
	return a
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bounded judges, at the height of an attack, what it costs, and that others are served.
func (a *attacked) bounded() {
	a.t.Helper()
	if n := runtime.NumGoroutine() - a.goroutines; n > attackStreams+10 {
		a.t.Errorf("the attack has made %d goroutines", n)
	}
	if n := a.running.Load(); n > attackStreams {
		a.t.Errorf("%d handlers run at once, want %d at most", n, attackStreams)
	}
	if now := heap(); now > a.held+mostHeld {
		a.t.Errorf("the attack holds %d KB", (now-a.held)>>10)
	}
	do(a.t, a.client, http.MethodGet, a.url, nil)
}

// over waits until all handlers are done.
func (a *attacked) over() {
	a.t.Helper()
	waittest.Until(a.t, "no handler runs", func() bool { return a.running.Load() == 0 })
}

// sentAway reads what the server says until it hangs up, and returns the code of its GOAWAY.
func (a *attacked) sentAway() <-chan http2.ErrCode {
	code := make(chan http2.ErrCode, 1)
	go func() { // ends with the connection, which the test's end closes
		last := http2.ErrCodeNo
		for {
			f, err := a.ReadFrame()
			if err != nil {
				code <- last
				return
			}
			if g, ok := f.(*http2.GoAwayFrame); ok {
				last = g.ErrCode
			}
		}
	}()
	return code
}

// flood sends until the server hangs up.
func (a *attacked) flood(send func() error) {
	a.t.Helper()
	for range 10_000_000 {
		if send() != nil {
			return
		}
	}
	a.t.Error("ten million times, and the server still listens")
}

// TestRapidReset: requests that are taken back at once (CVE-2023-44487), or that are made to be reset (CVE-2025-8671),
// begin few handlers and end the connection, also of a client that reads all answers.
func TestRapidReset(t *testing.T) {
	for name, takeBack := range map[string]func(p *peer, id uint32) error{
		"reset": func(p *peer, id uint32) error { return p.WriteRSTStream(id, http2.ErrCodeCancel) },
		"made to reset": func(p *peer, id uint32) error {
			return p.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			attacked := attack(t, Options{}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			code := attacked.sentAway()
			id := uint32(1)
			begin := time.Now()
			var block bytes.Buffer
			enc := hpack.NewEncoder(&block)
			attacked.flood(func() error {
				block.Reset()
				for _, f := range []hpack.HeaderField{
					{Name: ":method", Value: "GET"},
					{Name: ":scheme", Value: "https"},
					{Name: ":authority", Value: "x"},
					{Name: ":path", Value: "/"},
				} {
					if err := enc.WriteField(f); err != nil {
						return err
					}
				}
				err := attacked.WriteHeaders(http2.HeadersFrameParam{
					StreamID:      id,
					BlockFragment: block.Bytes(),
					EndHeaders:    true,
					EndStream:     true,
				})
				if err == nil {
					err = takeBack(attacked.peer, id)
				}
				id += 2
				return err
			})
			attacked.bounded()
			if got := <-code; got != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("the connection ended with %v, want ENHANCE_YOUR_CALM", got)
			}
			if n, most := attacked.begun.Load(), resetsAtOnce+int64(time.Since(begin).Seconds()*resetsPerSecond)+
				attackStreams; n > most {
				t.Errorf("%d handlers were begun, want %d at most", n, most)
			}
			attacked.over()
		})
	}
}

// TestHeaderFloods: header blocks without an end, and small ones that stand for large headers, cost no more than a
// header may have.
func TestHeaderFloods(t *testing.T) {
	literal := func(name string, size int) []byte {
		b := append([]byte{0x40}, append(appendInt(nil, 7, uint64(len(name))), name...)...)
		return append(append(b, appendInt(nil, 7, uint64(size))...), bytes.Repeat([]byte{'x'}, size)...)
	}
	begin := func(p *peer, block []byte) error {
		return p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true})
	}
	for name, c := range map[string]struct {
		first []byte
		more  []byte
	}{
		"continuation":       {literal("x-a", 100), bytes.Repeat(literal("x-b", 1000), 16)},
		"empty continuation": {literal("x-a", 100), nil},
		// the newest entry of the dynamic table, again and again
		"hpack bomb": {literal("x-a", 3900), bytes.Repeat([]byte{0x80 | 62}, 16<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			a := attack(t, Options{IdleTimeout: 500 * time.Millisecond}, nothing)
			code := a.sentAway()
			if err := begin(a.peer, c.first); err != nil {
				t.Fatal(err)
			}
			a.flood(func() error { return a.WriteContinuation(1, false, c.more) })
			a.bounded()
			<-code
			if n := a.begun.Load(); n != 0 {
				t.Errorf("%d handlers were begun", n)
			}
		})
	}
	t.Run("hpack bomb of one block", func(t *testing.T) {
		attacked := attack(t, Options{}, nothing)
		attacked.block.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "GET"},
			{Name: ":scheme", Value: "https"},
			{Name: ":authority", Value: "x"},
			{Name: ":path", Value: "/"},
		} {
			attacked.ok(attacked.enc.WriteField(f))
		}
		block := append(bytes.Clone(attacked.block.Bytes()), literal("x-a", 3900)...)
		block = append(block, bytes.Repeat([]byte{0x80 | 62}, 8<<10)...) // 32 MB of header
		attacked.ok(attacked.WriteHeaders(http2.HeadersFrameParam{
			StreamID:      1,
			BlockFragment: block,
			EndHeaders:    true,
			EndStream:     true,
		}))
		if got := attacked.until(func(f http2.Frame) bool {
			_, gone := f.(*http2.GoAwayFrame)
			return gone || strings.HasPrefix(describe(f), "headers(1 ")
		}); !strings.Contains(got, "headers(1 431)") && !strings.Contains(got, "goaway") {
			t.Errorf("the server answers %s", got)
		}
		attacked.bounded()
	})
}

// TestManySettings: a frame of thousands of settings, each about every stream, is refused; those of the flood without
// number TestFloods has.
func TestManySettings(t *testing.T) {
	a := attack(t, Options{}, nothing)
	code := a.sentAway()
	many := make([]http2.Setting, defaultFrame/6)
	for i := range many {
		many[i] = http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)} // small
	}
	a.flood(func() error { return a.WriteSettings(many...) })
	if got := <-code; got != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("the connection ended with %v, want ENHANCE_YOUR_CALM", got)
	}
}

// TestZeroWindows: answers that the client lets nothing through of hold what few handlers hold, and end with the
// deadline that the handler sets.
func TestZeroWindows(t *testing.T) {
	large := make([]byte, 1<<20)
	writing := make(chan *http.ResponseController, attackStreams)
	failed := make(chan error, attackStreams)
	attacked := attack(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		writing <- http.NewResponseController(w)
		_, err := w.Write(large)
		failed <- err
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for i := range uint32(20 * attackStreams) {
		attacked.request(2*i+1, true)
	}
	attacked.until(isReset(20*2*attackStreams-1, http2.ErrCodeRefusedStream))
	attacked.bounded()
	// deadlines that are set before this would end handlers, and let others begin, while the attack goes on
	for range attackStreams {
		attacked.ok((<-writing).SetWriteDeadline(time.Now().Add(10 * time.Millisecond)))
	}
	for range attackStreams {
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a write that no window lets through: %v", err)
		}
	}
	attacked.over()
}

// TestSlowBodies: bodies that never end hold what few handlers hold, and end with the deadline that the handler sets.
func TestSlowBodies(t *testing.T) {
	reading := make(chan *http.ResponseController, attackStreams)
	failed := make(chan error, attackStreams)
	attacked := attack(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		reading <- http.NewResponseController(w)
		_, err := io.Copy(io.Discard, r.Body)
		failed <- err
	})
	id := uint32(1)
	for range 20 * attackStreams {
		attacked.request(id, false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/")
		id += 2
	}
	for range 10_000 { // a byte, and frames without one
		attacked.ok(attacked.WriteData(1, false, nil))
	}
	attacked.ok(attacked.WriteData(1, false, []byte("x")))
	attacked.bounded()
	for range attackStreams { // not before: see TestZeroWindows
		attacked.ok((<-reading).SetReadDeadline(time.Now().Add(10 * time.Millisecond)))
	}
	for range attackStreams {
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a body that does not end: %v", err)
		}
	}
	attacked.over()
}
