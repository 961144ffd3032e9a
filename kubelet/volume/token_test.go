// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"keelson/lib/inroot"
)

// jwt is a token without a signature.
func jwt(issued, expires time.Time) string {
	body := fmt.Sprintf(`{"iat":%d,"exp":%d,"aud":["api"]}`, issued.Unix(), expires.Unix())
	return "h." + base64.RawURLEncoding.EncodeToString([]byte(body)) + ".s"
}

// TestTokenByClock: a token in a volume is used until most of its life is over by the wall clock, and not where the
// clock is before its issue, for it may then have expired long before this clock says so.
func TestTokenByClock(t *testing.T) {
	path := t.TempDir()
	issued := time.Unix(1_800_000_000, 0)
	token := jwt(issued, issued.Add(time.Hour))
	if err := os.WriteFile(filepath.Join(path, "token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := inroot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	for after, want := range map[time.Duration]bool{
		-3 * time.Hour:           false,
		-clockSkew - time.Second: false,
		-clockSkew:               true,
		0:                        true,
		47 * time.Minute:         true,
		48 * time.Minute:         false,
		3 * time.Hour:            false,
	} {
		_, renew, ok := existingToken(dir, "token", "api", issued.Add(after))
		if ok != want {
			t.Errorf("%s after its issue: used %t, want %t", after, ok, want)
		}
		if ok && !renew.Equal(issued.Add(48*time.Minute)) {
			t.Errorf("%s after its issue: renewed at %s", after, renew)
		}
	}
}

// TestLifeOfToken: both times of a token are of the server's clock, whatever this machine's shows.
func TestLifeOfToken(t *testing.T) {
	for _, off := range []time.Duration{-3 * time.Hour, 0, 3 * time.Hour} {
		issued := time.Now().Add(off)
		if got := lifeOf(jwt(issued, issued.Add(10*time.Minute)), 3600); got != 10*time.Minute {
			t.Errorf("of a server %s ahead: %s", off, got)
		}
	}
	if got := lifeOf("opaque", 3600); got != time.Hour {
		t.Errorf("of an opaque token: %s", got)
	}
}
