// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

//nolint:revive // t first in tests
func get(t *testing.T, ctx context.Context, h http.HandlerFunc) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://in-process/x?a=b", nil)
	if err != nil {
		t.Fatal(err)
	}
	return transport{h}.RoundTrip(r)
}

// either runs f for a path whose answers stream and for one whose answers come whole.
func either(t *testing.T, f func(t *testing.T, get func(http.HandlerFunc) *http.Response)) {
	t.Helper()
	for _, path := range []string{"/x", "/api/v1/nodes/x"} {
		t.Run(path, func(t *testing.T) {
			f(t, func(h http.HandlerFunc) *http.Response {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://in-process"+path+"?a=b", nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := transport{h}.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = res.Body.Close() })
				return res
			})
		})
	}
}

func TestStreams(t *testing.T) {
	for _, c := range []struct {
		method, url string
		want        bool
	}{
		{"GET", "/api/v1/pods", false},
		{"GET", "/api/v1/pods?watch=true", true},
		{"GET", "/api/v1/watch/pods", true},
		{"GET", "/api/v1/namespaces/a/pods/b/log?follow=true", true},
		{"POST", "/api/v1/namespaces/a/pods/b/exec", true},
		{"GET", "/api/v1/namespaces/a/pods/b/portforward", true},
		{"PUT", "/api/v1/namespaces/a/services/b/proxy/x", true},
		{"POST", "/api/v1/namespaces/a/pods", false},
		{"PATCH", "/apis/apps/v1/namespaces/a/deployments/b", false},
		{"DELETE", "/api/v1/namespaces/a/pods/log", false},
		{"GET", "/debug/pprof/profile", true},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "https://in-process"+c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := streams(r); got != c.want {
			t.Errorf("streams(%s %s): got %v, want %v", c.method, c.url, got, c.want)
		}
	}
}

func mustGet(t *testing.T, h http.HandlerFunc) *http.Response {
	t.Helper()
	res, err := get(t, t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func TestAnswer(t *testing.T) {
	either(t, func(t *testing.T, get func(http.HandlerFunc) *http.Response) {
		res := get(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-A", "1")
			w.Header().Set("Trailer", "X-End")
			w.WriteHeader(http.StatusTeapot)
			w.Header().Set("X-Late", "no")
			w.Header().Set("X-End", "t")
			_, _ = fmt.Fprintf(w, "%s %s %s", r.RequestURI, r.Host, r.RemoteAddr)
		})
		b, err := io.ReadAll(res.Body)
		if err != nil || string(b) != res.Request.URL.RequestURI()+" in-process 127.0.0.1:0" {
			t.Errorf("body: got %q, %v", b, err)
		}
		if res.StatusCode != http.StatusTeapot || res.Status != "418 I'm a teapot" ||
			res.ContentLength != int64(len(b)) {
			t.Errorf("got %s, length %d", res.Status, res.ContentLength)
		}
		if res.Header.Get("X-A") != "1" || res.Header.Get("X-Late") != "" || res.Trailer.Get("X-End") != "t" {
			t.Errorf("got header %v, trailer %v", res.Header, res.Trailer)
		}
	})
}

func TestEmptyAnswer(t *testing.T) {
	either(t, func(t *testing.T, get func(http.HandlerFunc) *http.Response) {
		res := get(func(http.ResponseWriter, *http.Request) {})
		if b, err := io.ReadAll(res.Body); err != nil || len(b) != 0 || res.StatusCode != http.StatusOK {
			t.Errorf("got %q, %v, %s", b, err, res.Status)
		}
	})
}

func TestLargeAnswer(t *testing.T) {
	either(t, func(t *testing.T, get func(http.HandlerFunc) *http.Response) {
		want := strings.Repeat("0123456789", 100_000)
		res := get(func(w http.ResponseWriter, _ *http.Request) {
			for s := want; s != ""; s = s[1000:] {
				if _, err := io.WriteString(w, s[:1000]); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != want {
			t.Errorf("got %d bytes, %v; want %d", len(b), err, len(want))
		}
	})
}

func TestRequestBody(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://in-process/",
		strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport{
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }),
	}.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestStream(t *testing.T) {
	next := make(chan string)
	res := mustGet(t, func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		if err := c.SetWriteDeadline(time.Time{}); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
		if err := c.Flush(); err != nil {
			t.Errorf("Flush: %v", err)
		}
		for s := range next {
			_, _ = io.WriteString(w, s)
			_ = c.Flush()
		}
	})
	buf := make([]byte, 100)
	for _, want := range []string{"one", "two"} {
		next <- want
		if n, err := res.Body.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("got %q, %v; want %q", buf[:n], err, want)
		}
	}
	close(next)
	if _, err := res.Body.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: got %v", err)
	}
}

func TestPanic(t *testing.T) {
	either(t, func(t *testing.T, get func(http.HandlerFunc) *http.Response) {
		res := get(func(http.ResponseWriter, *http.Request) { panic("boom") })
		if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusInternalServerError ||
			!strings.Contains(string(b), "boom") {
			t.Errorf("got %s %q, want 500 that says why", res.Status, b)
		}
		res = get(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "begun")
			panic("boom")
		})
		if b, err := io.ReadAll(res.Body); string(b) != "begun" || err == nil {
			t.Errorf("panic after the answer began: got %q, %v; want it broken off", b, err)
		}
		res = get(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic(http.ErrAbortHandler)
		})
		if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("aborted: got %v", err)
		}
	})
}

// TestHandlerEnds runs in a bubble: it fails if a handler's goroutine is left over.
func TestHandlerEnds(t *testing.T) {
	forever := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	writer := func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		for what, handlerFunc := range map[string]http.HandlerFunc{"waiting": forever, "writing": writer} {
			res, err := get(t, t.Context(), handlerFunc)
			if err != nil {
				t.Fatal(err)
			}
			if err := res.Body.Close(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			synctest.Wait()

			ctx, cancel := context.WithCancel(t.Context())
			if res, err = get(t, ctx, handlerFunc); err != nil {
				t.Fatal(err)
			}
			cancel()
			if _, err := io.Copy(io.Discard, res.Body); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: reading after the context ended: got %v", what, err)
			}
			_ = res.Body.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := get(t, ctx, silent); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("silent handler: got %v", err)
		}
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	body := make([]byte, 2048)
	t := transport{http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })}
	b.ReportAllocs()
	for b.Loop() {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://in-process/x", nil)
		if err != nil {
			b.Fatal(err)
		}
		res, err := t.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			b.Fatal(err)
		}
		_ = res.Body.Close()
	}
	runtime.KeepAlive(body)
}
