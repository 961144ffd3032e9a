// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Streams of exec, attach and port-forward never cross the node's network in the clear, where a pod might come between: the kubelet in
// this process gets them over socket pairs that nobody else can open, clients over a CRI socket by TLS. Each address is good once and
// cannot be guessed.

// pairs is a listener whose connections are made by dial, in this process alone.
type pairs struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPairs() *pairs {
	p := &pairs{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pairs) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pairs) Close() error {
	p.close()
	return nil
}

func (p *pairs) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "in process"} }

// dial returns one end of a new connection and hands the other one to Accept.
func (p *pairs) dial(ctx context.Context) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime's streams: %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		c, connErr := net.FileConn(f)
		_ = f.Close() // the connection has a copy
		err = errors.Join(err, connErr)
		ends[i] = c
	}
	if err == nil {
		select {
		case p.conns <- ends[1]:
			return ends[0], nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-p.closed:
			err = net.ErrClosed
		}
	}
	for _, c := range ends {
		if c != nil {
			_ = c.Close() // nobody has it
		}
	}
	return nil, fmt.Errorf("connect to the runtime's streams: %w", err)
}

// DialStreams connects to the server behind the addresses of Exec, Attach and PortForward. It is for a kubelet in this process.
func (s *Server) DialStreams(ctx context.Context) (net.Conn, error) { return s.pairs.dial(ctx) }

// serveStreams serves the addresses of streams until ctx is done.
func (s *Server) serveStreams(ctx context.Context, wg *sync.WaitGroup) (stop func(), err error) {
	web := &http.Server{Handler: s.stream, ReadHeaderTimeout: 10 * time.Second}
	listeners := []net.Listener{s.pairs}
	s.base.Scheme, s.base.Host = "http", "streams"
	if s.cfg.StreamTCP {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("listen for streams: %w", err)
		}
		cert, err := selfSigned()
		if err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("make the streaming server's certificate: %w", err)
		}
		s.base.Scheme, s.base.Host = "https", l.Addr().String()
		listeners = append(listeners, tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}, // streams upgrade, which HTTP/2 cannot
		}))
	}
	for _, l := range listeners {
		wg.Go(func() {
			if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.log.Error("streaming server ended", "error", err)
			}
		})
	}
	// Streams are hijacked connections, which Close ends; a graceful end would wait for people.
	return func() { _ = web.Close() }, nil // nothing is left to lose
}

// selfSigned makes a certificate for this process's life. Clients of a CRI socket do not check it, as CRI has no word for whom to
// trust; it keeps their streams from who only sees the traffic.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "keelson-streams"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
