// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
)

// nodeUser is the prefix of a kubelet's user name, the common name of its certificate.
const nodeUser = "system:node:"

// TunnelDialer opens a connection to a node's kubelet by a tunnel; nil without an error: there is no tunnel.
type TunnelDialer func(ctx context.Context, node string) (net.Conn, error)

// NodeTransport returns a transport for URLs like https://<node name>:<port>/ with HTTP/1.1 and connections per node.
// address returns the host of a node's kubelet. Before anything is sent, the kubelet must present a certificate of
// conf's CA for the address and for the node: no node can act as another one or make the server call itself.
//
// through opens a connection by the tunnel that the node has opened to this server; nil: there is none, and the node is
// called at its address. Such a connection leads only to the node's kubelet, so its address is not checked; the
// kubelet's certificate is.
//
// A connection from the transport's DialContext is encrypted already, so a caller that uses it must use an http:// URL.
func (e *Egress) NodeTransport(conf func() *tls.Config, address func(
	ctx context.Context, node string,
) (string, error), through TunnelDialer,
) *http.Transport {
	transport := e.Transport(Options{Target: Kubelet})
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		node, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		host, err := address(ctx, node)
		if err != nil {
			return nil, err
		}
		var raw net.Conn
		if through != nil {
			if raw, err = through(ctx, node); err != nil {
				return nil, err
			}
		}
		if raw == nil {
			if raw, err = e.Dial(ctx, Kubelet, network, net.JoinHostPort(host, port)); err != nil {
				return nil, err
			}
		}
		own := &tls.Config{MinVersion: tls.VersionTLS12}
		if conf != nil {
			own = conf().Clone()
		}
		own.ServerName = host
		own.VerifyConnection = func(s tls.ConnectionState) error { return verifyNodeCertificate(s, node) }
		conn := tls.Client(raw, own)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close() // the handshake's error is more useful
			return nil, fmt.Errorf("kubelet of node %s at %s: %w", node, raw.RemoteAddr(), err)
		}
		return conn, nil
	}
	transport.DialTLSContext = transport.DialContext
	return transport
}

func verifyNodeCertificate(s tls.ConnectionState, node string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("no certificate was shown")
	}
	if name := s.PeerCertificates[0].Subject.CommonName; name != nodeUser+node {
		return fmt.Errorf("the certificate is of %q, not of %q", name, nodeUser+node)
	}
	return nil
}
