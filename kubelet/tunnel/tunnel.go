// SPDX-License-Identifier: Apache-2.0

// Package tunnel keeps a connection from a node to each API server, by which that server reaches the kubelet if it
// cannot connect to the node. cluster runs it with a kubelet, and passes it to the kubelet as an additional listener.
// Connections that an API server opens go to the kubelet's server and nowhere else. It dials only the API servers.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"keelson/lib/mux"
)

// The back-off between attempts: it doubles with each failure, and starts again after a tunnel that lasted.
const (
	firstPause  = time.Second
	longPause   = time.Minute
	lasted      = time.Minute
	openTimeout = 30 * time.Second
)

// Servers are the API servers (client/servers).
type Servers interface {
	// Hosts returns them as HOST:PORT, and a channel that is closed when they have changed or may have come back.
	Hosts() ([]string, <-chan struct{})
	// Upgrade returns a transport of HTTP/1.1 to one of them, which shows the node's client certificate.
	Upgrade(host string) *http.Transport
}

// Tunnel is a net.Listener of the connections that the API servers open to this node. Run it once.
type Tunnel struct {
	servers Servers
	log     *slog.Logger
	conns   chan net.Conn
	closed  chan struct{}
	close   func()
}

// New returns a tunnel. Run opens it.
func New(servers Servers, log *slog.Logger) *Tunnel {
	t := &Tunnel{
		servers: servers,
		log:     log,
		conns:   make(chan net.Conn),
		closed:  make(chan struct{}),
	}
	t.close = sync.OnceFunc(func() { close(t.closed) })
	return t
}

// Accept returns the next connection from an API server.
func (t *Tunnel) Accept() (net.Conn, error) {
	select {
	case c := <-t.conns:
		return c, nil
	case <-t.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept. Accepted connections stay open until Run ends.
func (t *Tunnel) Close() error {
	t.close()
	return nil
}

// Addr returns a name instead of a network address.
func (t *Tunnel) Addr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "tunnel" }
func (address) String() string  { return "tunnel" }

// errUnknown: the API server does not support tunnels. It is not Keelson's, or an older version.
var errUnknown = errors.New("the server takes no tunnels")

// Run keeps a connection to each server until ctx is done.
func (t *Tunnel) Run(ctx context.Context, ready func()) error {
	ready()
	var wg sync.WaitGroup
	defer wg.Wait()
	ends := map[string]context.CancelFunc{}
	for {
		hosts, changed := t.servers.Hosts()
		for host, end := range ends {
			if !slices.Contains(hosts, host) {
				end()
				delete(ends, host)
			}
		}
		for _, host := range hosts {
			if ends[host] != nil {
				continue
			}
			one, end := context.WithCancel(ctx)
			ends[host] = end
			wg.Go(func() {
				defer end()
				t.keep(one, host)
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// keep keeps the connection to one server open until ctx is done. It does not retry if the server does not support
// tunnels.
func (t *Tunnel) keep(ctx context.Context, host string) {
	transport := t.servers.Upgrade(host)
	transport.ResponseHeaderTimeout = openTimeout
	defer transport.CloseIdleConnections()
	log := t.log.With("server", host)
	for pause := firstPause; ; {
		began := time.Now()
		_, changed := t.servers.Hosts()
		err := t.once(ctx, host, transport, log)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errUnknown):
			log.Info("the API server must reach this node's kubelet by its address", "why", err)
			return
		}
		if time.Since(began) > lasted {
			pause = firstPause
		}
		log.Info("the tunnel to the API server is opened again", "err", err, "in", pause)
		// Jitter: after a restart of the API server, not all nodes call at the same moment.
		timer := time.NewTimer(pause/2 + rand.N(pause)) // spreads load
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
			timer.Stop()
			pause = firstPause
			continue
		case <-timer.C:
		}
		pause = min(2*pause, longPause)
	}
}

// once opens the tunnel and serves until it ends.
func (t *Tunnel) once(ctx context.Context, host string, rt http.RoundTripper, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+mux.Path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", mux.Protocol)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
	case http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed:
		return fmt.Errorf("%w: %s", errUnknown, resp.Status)
	default:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		return fmt.Errorf("%w: the connection was not handed over", errUnknown)
	}
	session, err := mux.Accepter(conn)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer stop()
	log.Info("a tunnel to the API server is open")
	return t.serve(session)
}

// serve passes connections from the API server to Accept.
func (t *Tunnel) serve(session *mux.Session) error {
	for {
		stream, err := session.Accept()
		if err != nil {
			return err
		}
		if session.Len() > mux.Most {
			_ = stream.Close() // a server that keeps to its word does not open so many
			continue
		}
		select {
		case t.conns <- stream:
		case <-t.closed:
			_ = stream.Close()
			return net.ErrClosed
		}
	}
}
