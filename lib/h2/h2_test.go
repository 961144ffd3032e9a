// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keelson/lib/waittest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// serve serves h over HTTP/2 and returns a client that speaks nothing else.
func serve(t testing.TB, o Options, h http.HandlerFunc, change ...func(*http.Server)) (*httptest.Server, *http.Client) {
	t.Helper()
	ts := httptest.NewUnstartedServer(h)
	ts.EnableHTTP2 = true
	ts.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, f := range change {
		f(ts.Config)
	}
	Configure(ts.Config, o)
	ts.StartTLS()
	t.Cleanup(ts.Close)
	return ts, ts.Client()
}

func do(t testing.TB, c *http.Client, method, url string, body io.Reader) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.ProtoMajor != 2 {
		t.Fatalf("the answer came over %s", resp.Proto)
	}
	return resp, b
}

func TestRequestAndAnswer(t *testing.T) {
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-One", "1")
		w.Header()["X-Two"] = []string{"2", "zwei"}
		w.Header().Set("Connection", "keep-alive")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("X-Late", "not sent")
		fmt.Fprintf(w, "%s %s %s %d %s %v %s", r.Method, r.URL, r.Host, r.ContentLength, b, r.TLS != nil,
			strings.Join(r.Header["X-Q"], "|"))
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, ts.URL+"/a/b?c=d", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["X-Q"] = []string{"p", "q"}
	resp, err := cl.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	want := "PUT /a/b?c=d " + strings.TrimPrefix(ts.URL, "https://") + " 5 hello true p|q"
	if string(b) != want {
		t.Errorf("got %q, want %q", b, want)
	}
	h := resp.Header
	if resp.StatusCode != http.StatusCreated || h.Get("X-One") != "1" || strings.Join(h["X-Two"], "|") != "2|zwei" ||
		h.Get("Connection") != "" ||
		h.Get("X-Late") != "" || h.Get("Date") == "" || resp.ContentLength != int64(len(want)) ||
		!strings.HasPrefix(h.Get("Content-Type"), "text/plain") {
		t.Errorf("got code %d and header %v", resp.StatusCode, h)
	}
}

func TestAnswersWithoutBody(t *testing.T) {
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("write to a 204: %v", err)
			}
		case "/head":
			_, _ = w.Write([]byte("12345"))
		case "/short":
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("12345"))
		case "/long":
			w.Header().Set("Content-Length", "3")
			if _, err := w.Write([]byte("12345")); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("write of more than was promised: %v", err)
			}
		}
	})
	if resp, b := do(t, cl, http.MethodGet, ts.URL+"/204", nil); resp.StatusCode != 204 || len(b) > 0 {
		t.Errorf("204: got %d, %q", resp.StatusCode, b)
	}
	if resp, b := do(t, cl, http.MethodHead, ts.URL+"/head", nil); resp.ContentLength != 5 || len(b) > 0 {
		t.Errorf("HEAD: got length %d, %q", resp.ContentLength, b)
	}
	if resp, b := do(t, cl, http.MethodGet, ts.URL+"/empty", nil); resp.StatusCode != 200 || resp.ContentLength != 0 ||
		len(b) > 0 {
		t.Errorf("empty: got %d, length %d, %q", resp.StatusCode, resp.ContentLength, b)
	}
	for _, path := range []string{"/short", "/long"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+path, nil)
		resp, err := cl.Do(req)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: an answer unlike its Content-Length passed for whole", path)
		}
	}
}

func TestLargeBodiesBothWays(t *testing.T) {
	sent := make([]byte, 5<<20+17)
	_, _ = rand.Read(sent)
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		b := make([]byte, 7001)
		if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r.Body}, b); err != nil {
			t.Error(err)
		}
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL, struct {
				io.Reader
			}{bytes.NewReader(sent)})
			resp, err := cl.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("got %d bytes back, %v; sent %d", len(got), err, len(sent))
			}
		})
	}
	wg.Wait()
}

func TestManyAtOnceOnOneConnection(t *testing.T) {
	// by the client's address: how many of its handlers run; a client that may send no more on one connection opens
	// another
	var conns sync.Map
	var most atomic.Int64
	ts, cl := serve(t, Options{MaxStreams: 20}, func(w http.ResponseWriter, r *http.Request) {
		of, _ := conns.LoadOrStore(r.RemoteAddr, new(atomic.Int64))
		together := of.(*atomic.Int64) // nothing else is there
		n := together.Add(1)
		defer together.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			runtime.Gosched()
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte(r.URL.Path))
	})
	do(t, cl, http.MethodGet, ts.URL, nil) // the client learns how many it may send
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for j := range 20 {
				path := fmt.Sprintf("/%d/%d", i, j)
				if _, b := do(t, cl, http.MethodPost, ts.URL+path, strings.NewReader(path)); string(b) != path {
					t.Errorf("got %q, want %q", b, path)
				}
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n < 1 || n > 20 {
		t.Errorf("%d handlers of one connection ran together, 20 may", n)
	}
}

func TestStreamingAndCancel(t *testing.T) {
	ended := make(chan error, 1)
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		_, err := w.Write(make([]byte, 2*bodyBuffer))
		ended <- err
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, ts.URL, nil)
	resp, err := cl.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b := make([]byte, len("event 0\nevent 1\nevent 2\n"))
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "event 0\nevent 1\nevent 2\n" {
		t.Fatalf("got %q, %v", b, err)
	}
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a write to a client that went away succeeded")
		}
	case <-time.After(patience):
		t.Fatal("the handler never learned that its client is gone")
	}
}

func TestHandlerThatGivesUp(t *testing.T) {
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/abort":
			_, _ = w.Write(make([]byte, 3*bodyBuffer))
			panic(http.ErrAbortHandler)
		case "/panic":
			panic("no")
		case "/unread":
			w.WriteHeader(http.StatusForbidden)
		}
	})
	for _, path := range []string{"/abort", "/panic"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+path, nil)
		resp, err := cl.Do(req)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the answer passed for whole", path)
		}
	}
	for range 10 { // far more than the windows hold: what no one reads must be given back
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+"/unread", struct {
			io.Reader
		}{bytes.NewReader(make([]byte, 1<<20))})
		resp, err := cl.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Fatalf("got %d", resp.StatusCode)
		}
	}
	if resp, _ := do(t, cl, http.MethodGet, ts.URL, nil); resp.StatusCode != 200 {
		t.Errorf("afterwards: got %d", resp.StatusCode)
	}
}

func TestDeadlines(t *testing.T) {
	got := make(chan error, 2)
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.URL.Path == "/read" {
			_ = rc.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			got <- err
			return
		}
		_ = rc.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				got <- err
				return
			}
		}
	})
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	do(t, cl, http.MethodPost, ts.URL+"/read", r)
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: got %v", err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+"/write", nil)
	resp, err := cl.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }() // it is not read: the windows are closed
	}
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: got %v", err)
	}
}

func TestContinueAndEarlyHints(t *testing.T) {
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(b)
	})
	var hints, asked atomic.Int64
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code == http.StatusEarlyHints && h.Get("Link") == "</a>" {
				hints.Add(1)
			}
			return nil
		},
		Got100Continue: func() { asked.Add(1) },
	})
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, ts.URL, strings.NewReader("body"))
	req.Header.Set("Expect", "100-continue")
	cl.Transport.(*http.Transport).ExpectContinueTimeout = patience // httptest makes it
	resp, err := cl.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if b, _ := io.ReadAll(resp.Body); string(b) != "body" || hints.Load() != 1 || asked.Load() != 1 ||
		resp.Header.Get("Link") != "" {
		t.Errorf("got %q, %d hints, %d continues, header %v", b, hints.Load(), asked.Load(), resp.Header)
	}
}

func TestTrailers(t *testing.T) {
	ts, c := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Sum", r.Trailer.Get("X-Sent"))
		w.Header().Set(http.TrailerPrefix+"X-Unannounced", "yes")
	})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL, struct {
		io.Reader
	}{strings.NewReader("abc")})
	req.Trailer = http.Header{"X-Sent": {"42"}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	if string(b) != "abc" || resp.Trailer.Get("X-Sum") != "42" || resp.Trailer.Get("X-Unannounced") != "yes" {
		t.Errorf("got %q with trailers %v", b, resp.Trailer)
	}
}

// TestShutdown finishes what is under way, and leaves no goroutine.
func TestShutdown(t *testing.T) {
	begun := make(chan struct{})
	goOn := make(chan struct{})
	ts, cl := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(begun)
			<-goOn
		}
		_, _ = w.Write([]byte("done"))
	})
	do(t, cl, http.MethodGet, ts.URL, nil)
	answered := make(chan string, 1)
	go func() { // ends with the request
		_, b := do(t, cl, http.MethodGet, ts.URL+"/slow", nil)
		answered <- string(b)
	}()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- ts.Config.Shutdown(t.Context()) }() // ends with the shutdown
	waittest.Until(t, "Shutdown waits", func() bool {
		return len(stopped) > 0 || waits("net/http.(*Server).Shutdown(")
	})
	if len(stopped) > 0 {
		t.Fatalf("shutdown did not wait for a request: %v", <-stopped)
	}
	close(goOn)
	if got := <-answered; got != "done" {
		t.Errorf("got %q", got)
	}
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("shutdown does not end")
	}
	cl.CloseIdleConnections()
	waittest.Right(t, "no goroutine is left", func() string {
		left := goroutines()
		if !strings.Contains(left, "h2.(*conn)") {
			return ""
		}
		return left
	})
}

func goroutines() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// waits reports whether a goroutine waits for a timer or a channel in what function calls.
func waits(function string) bool {
	for g := range strings.SplitSeq(goroutines(), "\n\n") {
		state, stack, _ := strings.Cut(g, "\n")
		if strings.Contains(state, "[select") && strings.Contains(stack, function) {
			return true
		}
	}
	return false
}

func TestIdleConnectionsEnd(t *testing.T) {
	remotes := make(chan string, 2)
	closed := make(chan string, 100)
	ts, c := serve(t, Options{IdleTimeout: 20 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
	}, func(hs *http.Server) {
		hs.ConnState = func(c net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				closed <- c.RemoteAddr().String()
			}
		}
	})
	for range 2 { // the client goes on with another connection
		do(t, c, http.MethodGet, ts.URL, nil)
		late := time.After(patience)
		for got, want := "", <-remotes; got != want; {
			select {
			case got = <-closed:
			case <-late:
				t.Fatal("an idle connection lives on")
			}
		}
	}
}
