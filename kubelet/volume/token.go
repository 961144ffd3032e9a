// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"keelson/lib/inroot"
)

// maxToken bounds a token that is read back.
const maxToken = 1 << 20

// keptToken reads the token that lies in a volume, and when it must be renewed. ok is false when there is none to be kept:
// nothing is there, it cannot be read, or it is for another audience.
func keptToken(dir *inroot.Dir, target, audience string) (token []byte, renew time.Time, ok bool) {
	if dir == nil {
		return nil, time.Time{}, false
	}
	b, err := dir.ReadFile(target, maxToken)
	if err != nil {
		return nil, time.Time{}, false
	}
	issued, expires, audiences, ok := tokenLife(string(b))
	if !ok || audience != "" && !slices.Contains(audiences, audience) {
		return nil, time.Time{}, false
	}
	return b, issued.Add(min(expires.Sub(issued)*8/10, 24*time.Hour)), true
}

// tokenLife reads a JWT's times and audiences without verifying it: it is one the server gave us.
func tokenLife(jwt string) (issued, expires time.Time, audiences []string, ok bool) {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return issued, expires, nil, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return issued, expires, nil, false
	}
	var claims struct {
		Iat int64           `json:"iat"`
		Exp int64           `json:"exp"`
		Aud json.RawMessage `json:"aud"`
	}
	if json.Unmarshal(raw, &claims) != nil || claims.Iat == 0 || claims.Exp <= claims.Iat {
		return issued, expires, nil, false
	}
	if json.Unmarshal(claims.Aud, &audiences) != nil {
		var one string
		if json.Unmarshal(claims.Aud, &one) == nil {
			audiences = []string{one}
		}
	}
	return time.Unix(claims.Iat, 0), time.Unix(claims.Exp, 0), audiences, true
}
