// SPDX-License-Identifier: Apache-2.0

// Package streams serves the websockets of exec, attach, port-forward and log, and translates them for servers that use
// SPDY (exec, attach, port-forward) or plain HTTP (log). A kubelet calls it in front of its container runtime, the API
// server in front of a kubelet that declares no websockets. Clients with SPDY, or with a websocket protocol that
// runtimes know (v4.channel.k8s.io and older), are proxied directly and do not use it. It never authorizes a request.
package streams

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

const (
	handshakeTimeout = 10 * time.Second
	// closeTimeout is how long a client has to read the last data and to answer the close of its websocket: on a slow
	// connection megabytes may be in flight, and an earlier close would reset the connection at the client's next
	// message, such as a ping.
	closeTimeout = time.Minute
)

// IsWebSocket reports whether a request asks for a websocket of any protocol.
func IsWebSocket(r *http.Request) bool { return wsstream.IsWebSocketRequest(r) }

// IsRemote reports whether Remote must serve an exec or attach: only v5 can close standard input alone, which the
// websockets of runtimes cannot.
func IsRemote(r *http.Request) bool {
	return IsWebSocket(r) && slices.Contains(websocket.Subprotocols(r), remotecommand.StreamProtocolV5Name)
}

// IsTunnel reports whether Tunnel must serve a port-forward.
func IsTunnel(r *http.Request) bool { return IsWebSocket(r) && len(tunnelledProtocols(r)) > 0 }

// tunnelledProtocols lists the SPDY protocols that a client offers inside a websocket.
func tunnelledProtocols(r *http.Request) []string {
	var inner []string
	for _, p := range websocket.Subprotocols(r) {
		if rest, ok := strings.CutPrefix(p, constants.WebsocketsSPDYTunnelingPrefix); ok &&
			strings.HasSuffix(p, constants.KubernetesSuffix) {
			inner = append(inner, rest)
		}
	}
	return inner
}

// accept answers the handshake; protocol must be offered by the client, or "". After an error the response has been
// written. The Origin header is not checked, because authentication never uses cookies.
func accept(w http.ResponseWriter, r *http.Request, protocol string) (*websocket.Conn, error) {
	u := websocket.Upgrader{HandshakeTimeout: handshakeTimeout, CheckOrigin: func(*http.Request) bool { return true }}
	if protocol != "" {
		u.Subprotocols = []string{protocol}
	}
	return u.Upgrade(w, r, nil)
}
