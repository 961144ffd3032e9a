// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"crypto/tls"
	"net/http"
	"sync/atomic"
	"testing"
)

// TestConnectionsShowTheCurrentCertificate: a renewed certificate is shown on new connections, since an aggregated
// server looks at the one of the connection for each request; else connections stay.
func TestConnectionsShowTheCurrentCertificate(t *testing.T) {
	var current atomic.Pointer[tls.Certificate]
	current.Store(&tls.Certificate{})
	var built []*tls.Certificate
	c := &connections{
		certificate: current.Load,
		build: func(shows *tls.Certificate) (plain, upgrades *http.Transport) {
			built = append(built, shows)
			return &http.Transport{}, &http.Transport{}
		},
	}
	first, firstUpgrades := c.current()
	if again, _ := c.current(); again != first {
		t.Error("a second request has another transport")
	}
	current.Store(&tls.Certificate{})
	second, secondUpgrades := c.current()
	if second == first || secondUpgrades == firstUpgrades {
		t.Error("with a renewed certificate the old connections are used")
	}
	if len(built) != 2 || built[1] != current.Load() {
		t.Errorf("built %d times, want twice, with the renewed certificate", len(built))
	}
}
