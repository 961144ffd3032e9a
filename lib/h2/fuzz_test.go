// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"
)

// FuzzFrames: whatever a client sends behind its preface, the connection ends when the client has said all, and others
// are served.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		"",
		"\x00\x00\x00\x04\x01\x00\x00\x00\x00", // settings, acknowledged
		"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x82", // a request of nothing but a method
		// a header block that ends in the middle of a field
		"\x00\x00\x04\x01\x04\x00\x00\x00\x01\x82\x87\x84\x41",
		"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",                 // a reset of a stream that never was
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff",                 // a window beyond its bound
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff",         // an initial window beyond its bound
		"\x00\x00\x00\x09\x04\x00\x00\x00\x01",                                 // a continuation of nothing
		"\xff\xff\xff\x00\x00\x00\x00\x00\x01",                                 // a frame beyond any bound
		"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678\x00\x00\x00\x06\x00\x00", // pings, the last cut off
	} {
		f.Add([]byte(seed))
	}
	ts, _ := serve(f, Options{MaxStreams: 10, IdleTimeout: time.Minute, WriteTimeout: patience}, func(
		w http.ResponseWriter, r *http.Request,
	) {
		_, _ = io.Copy(w, io.LimitReader(r.Body, 1<<10))
	})
	f.Fuzz(func(t *testing.T, frames []byte) {
		p := dialTo(t, ts.URL)
		p.request(1, false)
		_, _ = p.conn.Write(frames) // the server may have hung up
		_ = p.conn.CloseWrite()
		if _, err := io.Copy(io.Discard, p.conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection does not end")
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ts.Client().Do(req)
		if err != nil {
			t.Fatalf("another client: %v", err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("another client: %d, %v", resp.StatusCode, err)
		}
	})
}
