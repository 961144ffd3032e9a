// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/base64"
	"net/http"
	"strings"
	"unicode/utf8"

	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// bearerProtocol is the prefix of the websocket subprotocol with a browser's token, because browsers cannot set
// headers: the rest is the token in base64url without padding. The client must also offer a real subprotocol.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// browserToken moves the token of a websocket handshake to the Authorization header, where every authenticator finds
// it, and removes it from the subprotocols, so that it is neither selected nor forwarded. An invalid handshake is left
// unchanged, without the token.
func browserToken(r *http.Request) {
	if len(r.Header[wsstream.WebSocketProtocolHeader]) == 0 || !wsstream.IsWebSocketRequest(r) {
		return
	}
	var kept []string
	var tokens []string
	for _, line := range r.Header.Values(wsstream.WebSocketProtocolHeader) {
		for p := range strings.SplitSeq(line, ",") {
			p = strings.TrimSpace(p)
			if hidden, ok := strings.CutPrefix(p, bearerProtocol); ok {
				tokens = append(tokens, hidden)
			} else if p != "" {
				kept = append(kept, p)
			}
		}
	}
	if len(tokens) == 0 {
		return
	}
	r.Header.Del(wsstream.WebSocketProtocolHeader)
	if len(kept) > 0 {
		r.Header.Set(wsstream.WebSocketProtocolHeader, strings.Join(kept, ", "))
	}
	token, err := base64.RawURLEncoding.DecodeString(tokens[0])
	if err != nil || len(tokens) > 1 || len(kept) == 0 || !utf8.Valid(token) || r.Header.Get("Authorization") != "" {
		return
	}
	r.Header.Set("Authorization", "Bearer "+string(token))
}
