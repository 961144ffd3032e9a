// SPDX-License-Identifier: Apache-2.0

// Package tunnel keeps a connection from a node to the API server, by which the API server reaches the kubelet if it
// cannot connect to the node. cluster runs it beside a kubelet, and passes it to the kubelet as an additional listener.
// Connections that the API server opens go to the kubelet's server and nowhere else. It dials only the API server.
package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/lib/mux"
)

// The back-off between attempts: it doubles with each failure, and starts again after a tunnel that lasted.
const (
	firstPause  = time.Second
	longPause   = time.Minute
	lasted      = time.Minute
	openTimeout = 30 * time.Second
)

// Tunnel is a net.Listener of the connections that the API server opens to this node. Run it once.
type Tunnel struct {
	client *client.Client
	log    *slog.Logger
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

// New returns a tunnel. Run opens it.
func New(cl *client.Client, log *slog.Logger) *Tunnel {
	t := &Tunnel{
		client: cl,
		log:    log,
		conns:  make(chan net.Conn),
		closed: make(chan struct{}),
	}
	t.close = sync.OnceFunc(func() { close(t.closed) })
	return t
}

// Accept returns the next connection from the API server.
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

// Run keeps the connection open until ctx is done. It does not retry if the API server does not support tunnels.
func (t *Tunnel) Run(ctx context.Context, ready func()) error {
	transport, wrapped, err := t.transport()
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	ready()
	for pause := firstPause; ; {
		began := time.Now()
		err := t.once(ctx, wrapped)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errUnknown):
			t.log.Info("the API server must reach this node's kubelet by its address", "why", err)
			<-ctx.Done()
			return nil
		}
		if time.Since(began) > lasted {
			pause = firstPause
		}
		t.log.Info("the tunnel to the API server is opened again", "err", err, "in", pause)
		// Jitter: after a restart of the API server, not all nodes call at the same moment.
		timer := time.NewTimer(pause/2 + rand.N(pause)) // spreads load
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		pause = min(2*pause, longPause)
	}
}

// transport returns the client's transport for an upgraded connection: HTTP/1.1, with the same certificate and dialer,
// so that the connection ends when the certificate is rotated.
func (t *Tunnel) transport() (*http.Transport, http.RoundTripper, error) {
	rt, err := rest.TransportFor(t.client.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnel: %w", err)
	}
	conf, err := utilnet.TLSClientConfig(rt)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnel: %w", err)
	}
	dial, err := utilnet.DialerFor(rt)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnel: %w", err)
	}
	own := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: openTimeout,
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	if conf != nil {
		own.TLSClientConfig = conf.Clone()
	}
	own.TLSClientConfig.NextProtos = []string{"http/1.1"}
	if dial != nil {
		own.DialContext = dial
	}
	wrapped, err := rest.HTTPWrappersForConfig(t.client.Config, own)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnel: %w", err)
	}
	return own, wrapped, nil
}

// once opens the tunnel and serves until it ends.
func (t *Tunnel) once(ctx context.Context, rt http.RoundTripper) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(t.client.Config.Host, "/")+mux.Path,
		http.NoBody)
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
	t.log.Info("a tunnel to the API server is open")
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
