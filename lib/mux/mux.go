// SPDX-License-Identifier: Apache-2.0

// Package mux multiplexes many connections over one: it is the protocol of the tunnel that a node keeps open to its API
// server. apiserver/tunnels and kubelet/tunnel use it. It does no authentication or authorization.
package mux

import (
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// The tunnel is opened by GET Path with "Upgrade: Protocol".
const (
	Path     = "/keelson/v1/tunnel"
	Protocol = "keelson-tunnel.v1+yamux"
)

// Most is the maximum number of concurrent connections of one tunnel.
const Most = 256

// Keepalive of a tunnel. The node sends pings, which also keep the connection alive in NAT routers. The server, which
// may have thousands of nodes, sends none.
const (
	askEvery = 30 * time.Second
	patience = 15 * time.Second
)

// window is the receive window of each connection, yamux's minimum.
const window = 256 << 10

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = Most
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = patience
	c.StreamOpenTimeout = patience
	c.MaxStreamWindowSize = window
	c.LogOutput = io.Discard // an error ends the session, and its owner logs it
	return c
}

// Opener starts the side that opens connections, which is the server. If the other side opens one, the caller must
// close the session.
func Opener(conn io.ReadWriteCloser) (*Session, error) { return begin(conn, yamux.Client, config()) }

// Accepter starts the side that accepts connections, which is the node.
func Accepter(conn io.ReadWriteCloser) (*Session, error) {
	c := config()
	c.EnableKeepAlive = true
	c.KeepAliveInterval = askEvery
	return begin(conn, yamux.Server, c)
}
