// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"encoding/base64"
	"net/http"
	"strings"
	"unicode/utf8"

	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// bearerProtocol begins the subprotocol in which a browser, which cannot set headers, hides a token: the rest is the token in
// base64url without padding. The client must offer a real subprotocol beside it.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// browserToken moves such a token of a websocket's handshake to the Authorization header, so that every authenticator finds it, and
// takes it out of the subprotocols, so that it is neither chosen nor passed on. A handshake that is not understood is left as it is,
// without the token.
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
