// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	"keelson/kubelet"
)

// listenBelow listens on a port that the kernel never picks for a listener on port 0: it stays free when it is closed.
func listenBelow(t *testing.T) net.Listener {
	t.Helper()
	for range 100 {
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 20000+rand.IntN(10000))); err == nil {
			return l
		}
	}
	t.Fatal("no port is free")
	return nil
}

// TestUsualPort: the kubelet listens where tools look for it, elsewhere only if that is taken, and nowhere else if it
// was asked for.
func TestUsualPort(t *testing.T) {
	free := listenBelow(t)
	port := free.Addr().(*net.TCPAddr).Port
	try := func(elsewhere bool) (got int, err error) {
		h := newHarness(t, func(h *harness) {
			h.cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
			h.cfg.ClientCA = x509.NewCertPool
			h.cfg.Address = netip.MustParseAddr("127.0.0.1")
			h.cfg.Port = port
			h.cfg.FallbackPort = elsewhere
			h.cfg.OnListen = func(a net.Addr) { got = a.(*net.TCPAddr).Port }
		})
		if !elsewhere {
			k, err := kubelet.New(h.cfg)
			if err != nil {
				t.Fatal(err)
			}
			return 0, k.Run(t.Context(), func() {})
		}
		h.run()()
		return got, nil
	}
	if _, err := try(false); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port that is asked for and taken: got %v, want an error", err)
	}
	if got, err := try(true); err != nil || got == port || got == 0 {
		t.Errorf("the usual port, taken: got %d, %v, want another", got, err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := try(true); err != nil || got != port {
		t.Errorf("the usual port: got %d, %v, want %d", got, err, port)
	}
}
