// SPDX-License-Identifier: Apache-2.0

// Package streams serves the websockets of exec, attach, port-forward and log, and translates them for kubelets, which speak
// SPDY (exec, attach, port-forward) or plain HTTP (log). handlers calls it once a request is admitted; clients that speak SPDY
// themselves, or a websocket protocol that kubelets know (v4.channel.k8s.io and older), are passed on and never come here.
// It decides nothing about who may do what.
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
	handshake = 10 * time.Second
	// goodbye is how long a client has to read what was sent last and to answer the closing of its websocket: megabytes may be on
	// their way over a slow line, and closing sooner takes them back as soon as the client says anything, a ping for instance.
	goodbye = time.Minute
)

// IsWebSocket tells whether a request asks for a websocket, of whatever protocol.
func IsWebSocket(r *http.Request) bool { return wsstream.IsWebSocketRequest(r) }

// IsRemote tells whether Remote must serve a request for exec or attach: only v5 can close standard input alone, which kubelets'
// own websockets cannot.
func IsRemote(r *http.Request) bool {
	return IsWebSocket(r) && slices.Contains(websocket.Subprotocols(r), remotecommand.StreamProtocolV5Name)
}

// IsTunnel tells whether Tunnel must serve a port-forward.
func IsTunnel(r *http.Request) bool { return IsWebSocket(r) && len(tunnelled(r)) > 0 }

// tunnelled lists the SPDY protocols that a client would speak inside a websocket.
func tunnelled(r *http.Request) []string {
	var inner []string
	for _, p := range websocket.Subprotocols(r) {
		if rest, ok := strings.CutPrefix(p, constants.WebsocketsSPDYTunnelingPrefix); ok && strings.HasSuffix(p, constants.KubernetesSuffix) {
			inner = append(inner, rest)
		}
	}
	return inner
}

// accept answers the handshake; protocol must be one that the client offered, or none. An error has been answered already. Where a
// browser's page comes from is not looked at: who asks was found out before, and never from a cookie.
func accept(w http.ResponseWriter, r *http.Request, protocol string) (*websocket.Conn, error) {
	u := websocket.Upgrader{HandshakeTimeout: handshake, CheckOrigin: func(*http.Request) bool { return true }}
	if protocol != "" {
		u.Subprotocols = []string{protocol}
	}
	return u.Upgrade(w, r, nil)
}
