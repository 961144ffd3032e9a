// SPDX-License-Identifier: Apache-2.0

// Package h2 serves HTTP/2 over TLS to the handler of an http.Server, for a server whose requests are short: the frames of
// golang.org/x/net/http2, with a connection that answers with one write what fits one write. The API server calls Configure;
// nobody else does. It serves no cleartext HTTP/2, no pushes and no CONNECT, and knows nothing of what is served.
//
// What differs from the server of golang.org/x/net: whoever has something to say writes it, under the connection's lock, and
// the last of those who wait for it flushes; there is no loop that owns the connection and no goroutine per write. A handler's
// goroutine takes the connection's next request when it is done, so that its stack has grown already.
//
// Invariants:
//  1. The reader of a connection never waits for its writer: what it has to say (acknowledgements, window updates, resets)
//     is queued, and said by whoever writes next.
//  2. conn.mu guards states and windows, conn.out.mu what is written, and they are taken in the order out.mu, mu.
//  3. Every goroutine of a connection ends with it.
//  4. What a client can make a connection hold, compute and begin is bounded, whatever frames it sends (attacks_test.go).
package h2

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options bound what one connection may take; zero values mean the defaults.
type Options struct {
	// MaxStreams is how many requests may be under way at once (default 250).
	MaxStreams uint32
	// IdleTimeout ends a connection without requests (default: never).
	IdleTimeout time.Duration
	// WriteTimeout ends a connection whose client takes nothing of what is written to it, and an answer whose end no window lets
	// through (default: never).
	WriteTimeout time.Duration
}

// server is what the connections of one http.Server share.
type server struct {
	options Options
	hs      *http.Server

	mu      sync.Mutex
	conns   map[*conn]struct{}
	closing bool
}

// Configure makes hs speak HTTP/2 to clients that ask for it in the TLS handshake. It is to be called before hs serves.
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

// serve serves one connection to its end. net/http closes it afterwards.
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

// shutdown asks clients to go, and ends connections when their last request is answered.
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
