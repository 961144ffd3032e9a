// SPDX-License-Identifier: Apache-2.0

// Package h2 is an HTTP/2 server over TLS for the handler of an http.Server, optimized for short requests. It uses the
// framing of golang.org/x/net/http2, and sends a small response with one write. The API server calls Configure; no one
// else does. It supports no cleartext HTTP/2, no pushes and no CONNECT.
//
// Differences to the server of golang.org/x/net: the goroutine that has data writes it under the connection's lock, and
// the last one that waits for the lock flushes; there is no goroutine that owns the connection, and none per write. A
// handler's goroutine serves the connection's next request when it is done, so that its stack has grown already.
//
// Invariants:
//  1. The reader of a connection never waits for a writer: its frames (acknowledgements, window updates, resets) are
//     queued, and the next writer sends them.
//  2. conn.mu guards states and windows, conn.out.mu the output. They are locked in the order out.mu, mu.
//  3. Every goroutine of a connection ends with it.
//  4. Memory, computation and handlers of a connection are bounded, whatever frames the client sends (attacks_test.go).
package h2

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options are the limits of a connection; zero values mean the defaults.
type Options struct {
	// MaxStreams is the maximum of concurrent requests (default 250).
	MaxStreams uint32
	// IdleTimeout closes a connection without requests (default: never).
	IdleTimeout time.Duration
	// WriteTimeout closes a connection whose client reads nothing, and aborts a response that waits for the client's
	// window (default: never).
	WriteTimeout time.Duration
}

// server holds the connections of one http.Server.
type server struct {
	options Options
	hs      *http.Server

	mu      sync.Mutex
	conns   map[*conn]struct{}
	closing bool
}

// Configure makes hs serve HTTP/2 to clients that negotiate it in the TLS handshake. Call it before hs serves.
func Configure(hs *http.Server, o Options) {
	if o.MaxStreams == 0 {
		o.MaxStreams = 250
	}
	s := &server{options: o, hs: hs, conns: map[*conn]struct{}{}}
	if hs.TLSConfig == nil {
		hs.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	for _, proto := range []string{"http/1.1", "h2"} {
		if !slices.Contains(hs.TLSConfig.NextProtos, proto) {
			hs.TLSConfig.NextProtos = append([]string{proto}, hs.TLSConfig.NextProtos...)
		}
	}
	if hs.TLSNextProto == nil {
		hs.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	hs.TLSNextProto["h2"] = s.serve
	hs.RegisterOnShutdown(s.shutdown)
}

// serve serves one connection until its end. net/http closes it afterwards.
func (s *server) serve(_ *http.Server, tc *tls.Conn, h http.Handler) {
	ctx := context.Background()
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		ctx = b.BaseContext()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newConn(s, tc, h)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	closing := s.closing
	s.mu.Unlock()
	if !closing {
		c.serve(ctx)
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// shutdown sends GOAWAY to all clients, and closes connections when their last request is answered.
func (s *server) shutdown() {
	s.mu.Lock()
	s.closing = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.goAway()
	}
}
