// SPDX-License-Identifier: Apache-2.0

// Package mux carries many connections through one: the words that a node and its API server agree upon for the connection that the node
// keeps open. apiserver/tunnels and kubelet/tunnel call it; it authenticates nobody, and decides nothing about who may open what.
package mux

import (
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// What both sides say when the connection is opened: GET Path with "Upgrade: Protocol".
const (
	Path     = "/keelson/v1/tunnel"
	Protocol = "keelson-tunnel.v1+yamux"
)

// Most is how many connections one tunnel carries at a time.
const Most = 256

// Times of a tunnel. The node asks whether the server is there, which also keeps the way open in routers that forget; the server, which may
// have thousands of nodes, does not ask.
const (
	askEvery = 30 * time.Second
	patience = 15 * time.Second
)

// window bounds what a reader who does not read lets lie, for each connection. It is the least that yamux knows.
const window = 256 << 10

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = Most
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = patience
	c.StreamOpenTimeout = patience
	c.MaxStreamWindowSize = window
	c.LogOutput = io.Discard // what goes wrong ends the session, and whoever has it says so
	return c
}

// Opener is the side that opens connections: the server's. Its caller ends the session when the other side opens one.
func Opener(conn io.ReadWriteCloser) (*Session, error) { return begin(conn, yamux.Client, config()) }

// Accepter is the side that accepts them: the node's.
func Accepter(conn io.ReadWriteCloser) (*Session, error) {
	c := config()
	c.EnableKeepAlive, c.KeepAliveInterval = true, askEvery
	return begin(conn, yamux.Server, c)
}
