// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestMessagesAreBounded: the runtime keeps a websocket message until its command has read it.
func TestMessagesAreBounded(t *testing.T) {
	mask := []byte{1, 2, 3, 4}
	small := append([]byte{0x82, 0x80 | 5}, append(mask, "small"...)...)
	middle := append([]byte{0x82, 0x80 | 126, 1, 0}, append(mask, bytes.Repeat([]byte("m"), 256)...)...)
	large := append([]byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 0x10, 0, 0}, append(mask, bytes.Repeat([]byte("l"),
		maxMessage)...)...)
	ping := []byte{0x89, 0}
	sent := bytes.Join([][]byte{small, ping, middle, large, small}, nil)
	got, err := io.ReadAll(&websocketConn{r: bytes.NewReader(sent)})
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes passed, then %v", len(got), len(sent), err)
	}
	larger := bytes.Clone(large)
	larger[9] = 1
	got, err = io.ReadAll(&websocketConn{r: bytes.NewReader(append(small, larger...))})
	if err == nil || !strings.Contains(err.Error(), "at most") || len(got) != 11 {
		t.Errorf("%d bytes passed, then %v", len(got), err)
	}
}

// TestUnknownUpgrade: no protocol passes whose frames are not bounded.
func TestUnknownUpgrade(t *testing.T) {
	conn, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	passed := make(chan error, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, err := http.NewResponseController(boundedUpgrade{w, r.Header.Get("Upgrade")}).Hijack()
		passed <- err
	})}
	go func() { _ = srv.Serve(conn) }() // ends with Close
	t.Cleanup(func() { _ = srv.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+conn.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY4")
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
	}
	if err := <-passed; err == nil || !strings.Contains(err.Error(), "SPDY4") {
		t.Errorf("got %v, want the protocol refused", err)
	}
}
