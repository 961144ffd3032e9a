// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"keelson/apiserver/access"
	"keelson/lib/connlimit"
	"keelson/lib/h2"
)

// Run serves until ctx is done. It calls ready when the caches are filled, the bootstrap objects exist and requests are
// accepted. At shutdown readiness fails first, then watches end, then running requests finish.
func (s *Server) Run(ctx context.Context, ready func()) error {
	// What running requests need outlives ctx until they are done.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	group, gctx := errgroup.WithContext(inner)
	if s.config.Reports.Audit != nil {
		group.Go(func() error { return s.config.Reports.Audit.Run(gctx) })
	}
	if s.config.Reports.Tracing != nil {
		group.Go(func() error { return s.config.Reports.Tracing.Run(gctx) })
	}
	filled := make(chan struct{})
	group.Go(func() error { return s.data.cache.Run(gctx, func() { close(filled) }) })
	group.Go(func() error {
		select {
		case <-filled:
		case <-gctx.Done():
			return nil
		case <-ctx.Done():
			cancel()
			return nil
		}
		err := s.serve(ctx, gctx, group, ready)
		cancel() // the caches end last
		return err
	})
	err := group.Wait()
	s.startShutdown()
	s.sources.Wait()
	s.data.usage.Close()
	s.handler.CloseIdle()
	s.data.kubelets.CloseIdle()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}

// serve runs the event handlers, bootstraps, and accepts requests until ctx is done.
func (s *Server) serve(ctx, inner context.Context, group *errgroup.Group, ready func()) error {
	handlers := access.NewEventHandlers(s.data.Served)
	for _, f := range slices.Concat(s.eventHandlers, s.upkeep.EventHandlers()) {
		if err := handlers.Start(inner, group, f); err != nil {
			return err
		}
	}
	group.Go(func() error { return s.definitions.Run(inner) })
	group.Go(func() error { return s.data.tunnels.Run(inner) })
	group.Go(func() error { return s.services.Run(inner) })
	group.Go(func() error { return s.flowSchemaStatus.run(inner) })
	if err := s.addresses.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	group.Go(func() error { return s.addresses.Run(inner, s.log) })
	if err := s.upkeep.Bootstrap(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a stop is no error
		}
		return err
	}
	// All rules apply to the first request.
	if err := handlers.Wait(inner, ctx); err != nil {
		return err
	}
	group.Go(func() error { return s.upkeep.Run(inner) })
	keeping, cancel := context.WithCancel(ctx)
	defer cancel()
	kept := make(chan struct{})
	group.Go(func() error {
		defer close(kept)
		return s.upkeep.RunEndpoints(keeping)
	})
	hs, failed := s.listen(inner, group)
	s.health.ready.Store(true)
	ready()
	select {
	case <-ctx.Done():
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", s.config.Serving.Listener.Addr(), err)
	case <-inner.Done():
	}
	s.startShutdown()
	cancel()
	<-kept
	s.upkeep.Leave(inner)
	if hs == nil {
		return nil
	}
	return s.shutdown(hs)
}

// listen accepts connections until the returned server is shut down; failed then receives the error, or nil. Both are
// nil without a listener.
func (s *Server) listen(inner context.Context, g *errgroup.Group) (hs *http.Server, failed chan error) {
	if s.config.Serving.Listener == nil {
		return nil, nil
	}
	hs = s.httpServer(inner)
	failed = make(chan error, 1)
	l := net.Listener(s.listener)
	if s.config.Serving.TLS != nil {
		l = tls.NewListener(l, hs.TLSConfig)
	}
	g.Go(func() error {
		err := hs.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		failed <- err
		return nil
	})
	return hs, failed
}

// startShutdown makes readiness fail and ends watches.
func (s *Server) startShutdown() { s.stop.Do(func() { close(s.stopping) }) }

func (s *Server) shutdown(hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Serving.Grace)
	defer cancel()
	if err := hs.Shutdown(ctx); err != nil {
		s.log.Warn("requests interrupted at shutdown", "error", err)
		return hs.Close()
	}
	return nil
}

// maxConcurrentStreams limits the concurrent requests of a connection.
const maxConcurrentStreams = 1000

// httpServer serves HTTP/2 with enough streams per connection for a client with many informers, and HTTP/1.1 for
// upgrades.
func (s *Server) httpServer(inner context.Context) *http.Server {
	hs := &http.Server{
		Handler:           s.root,
		ReadHeaderTimeout: 10 * time.Second, // also limits the TLS handshake
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    256 << 10, // an unauthenticated client may use this much per request
		BaseContext:       func(net.Listener) context.Context { return inner },
		ConnContext:       connlimit.Context,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // failed handshakes
	}
	if s.config.Serving.TLS == nil {
		return hs
	}
	hs.TLSConfig = s.config.Serving.TLS.Clone()
	if s.config.Serving.StandardHTTP2 {
		hs.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
		hs.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxConcurrentStreams, WriteByteTimeout: time.Minute}
		return hs
	}
	h2.Configure(hs, h2.Options{
		MaxStreams:   maxConcurrentStreams,
		IdleTimeout:  90 * time.Second,
		WriteTimeout: time.Minute,
	})
	return hs
}
