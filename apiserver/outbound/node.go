// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
)

// nodeUser begins the common name of a kubelet's certificate.
const nodeUser = "system:node:"

// Through opens a connection to a node's kubelet without calling the node; nil and no error: it cannot.
type Through func(ctx context.Context, node string) (net.Conn, error)

// Nodes returns a transport for URLs such as https://<name of a node>:<port>/, which keeps connections by node and speaks HTTP/1.1.
// address tells the host at which a node's kubelet is. Nothing is sent before the kubelet has shown a certificate of an authority of
// conf that is for the address and for the node: no node can pass for another one, or have the server speak to itself.
//
// through opens a connection by the tunnel that the node keeps open to this server; nil: there is none, and the node is called at its
// address. It need not be judged, since it leads to the node's kubelet only; the kubelet proves itself as it does otherwise.
//
// Who takes DialContext from the transport to make a connection of its own gets an encrypted one from it already, and so must ask for
// an http:// URL.
func (d *Door) Nodes(conf *tls.Config, address func(ctx context.Context, node string) (string, error), through Through) *http.Transport {
	t := d.Transport(Options{Target: Kubelet, TLS: conf})
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
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
			if raw, err = d.Dial(ctx, Kubelet, network, net.JoinHostPort(host, port)); err != nil {
				return nil, err
			}
		}
		own := &tls.Config{MinVersion: tls.VersionTLS12}
		if conf != nil {
			own = conf.Clone()
		}
		own.ServerName = host
		own.VerifyConnection = func(s tls.ConnectionState) error { return isNode(s, node) }
		conn := tls.Client(raw, own)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close() // the handshake's error says more
			return nil, fmt.Errorf("kubelet of node %s at %s: %w", node, raw.RemoteAddr(), err)
		}
		return conn, nil
	}
	t.DialTLSContext = t.DialContext
	return t
}

func isNode(s tls.ConnectionState, node string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("no certificate was shown")
	}
	if name := s.PeerCertificates[0].Subject.CommonName; name != nodeUser+node {
		return fmt.Errorf("the certificate is of %q, not of %q", name, nodeUser+node)
	}
	return nil
}
