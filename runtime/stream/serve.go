// SPDX-License-Identifier: Apache-2.0

package stream

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

// pairListener is a net.Listener whose connections are socket pairs that dial makes, in this process only.
type pairListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPairListener() *pairListener {
	p := &pairListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pairListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pairListener) Close() error {
	p.close()
	return nil
}

func (p *pairListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "in process"} }

// dial returns one end of a new connection and passes the other one to Accept.
func (p *pairListener) dial(ctx context.Context) (net.Conn, error) {
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
			_ = c.Close() // it was not passed to anyone
		}
	}
	return nil, fmt.Errorf("connect to the runtime's streams: %w", err)
}

// Dial connects a kubelet in this process to the server of the URLs of Exec, Attach and PortForward.
func (s *Service) Dial(ctx context.Context) (net.Conn, error) { return s.pair.dial(ctx) }

// Serve serves the URLs of streams until stop is called.
func (s *Service) Serve(ctx context.Context, wg *sync.WaitGroup) (stop func(), err error) {
	web := &http.Server{Handler: s.urls, ReadHeaderTimeout: 10 * time.Second}
	listeners := []net.Listener{s.pair}
	s.base.Scheme = "http"
	s.base.Host = "streams"
	if s.tcp {
		var lc net.ListenConfig
		listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("listen for streams: %w", err)
		}
		cert, err := selfSigned()
		if err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("make the streaming server's certificate: %w", err)
		}
		s.base.Scheme = "https"
		s.base.Host = listener.Addr().String()
		listeners = append(listeners, tls.NewListener(listener, &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{cert},
			NextProtos:   []string{"http/1.1"}, // streams upgrade, which HTTP/2 cannot
		}))
	}
	for _, l := range listeners {
		wg.Go(func() {
			if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.log.Error("streaming server ended", "error", err)
			}
		})
	}
	// Close ends the streams (hijacked connections); Shutdown would wait for interactive sessions.
	return func() { _ = web.Close() }, nil // the listeners are in this process only
}

// selfSigned makes a certificate for the life of this process. CRI has no field for the CA that clients should trust,
// so they do not verify it; it protects the streams from passive listeners only.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: "keelson-streams"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
