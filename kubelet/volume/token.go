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

// clockSkew is how far this machine's clock may be behind the API server's.
const clockSkew = time.Minute

// existingToken reads the token in a volume, and returns when it must be renewed. ok is false if there is none, it
// cannot be read, is for another audience, or is to be renewed now.
func existingToken(
	dir *inroot.Dir, target, audience string, now time.Time,
) (token []byte, renew time.Time, ok bool) {
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
	renew = issued.Add(renewAfter(expires.Sub(issued)))
	// The clock was set back, or shows another time than the API server's, by which the token may expire before renew.
	if now.Add(clockSkew).Before(issued) {
		return nil, time.Time{}, false
	}
	return b, renew, now.Before(renew)
}

// lifeOf returns how long a new token lives. Both its times are of the API server's clock, which may show another time
// than this machine's.
func lifeOf(token string, requested int64) time.Duration {
	if issued, expires, _, ok := tokenLife(token); ok {
		return expires.Sub(issued)
	}
	return time.Duration(requested) * time.Second
}

// renewAfter is when a token of this life is renewed, after its issue.
func renewAfter(life time.Duration) time.Duration { return min(life*8/10, 24*time.Hour) }

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
