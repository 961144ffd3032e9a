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

// maxToken is the limit for a token that is read from a volume.
const maxToken = 1 << 20

// existingToken reads the token in a volume, and returns when it must be renewed. ok is false if there is none, it
// cannot be read, or it is for another audience.
func existingToken(dir *inroot.Dir, target, audience string) (token []byte, renew time.Time, ok bool) {
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

// tokenLife reads a JWT's times and audiences. It does not verify the token, which comes from the API server.
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
