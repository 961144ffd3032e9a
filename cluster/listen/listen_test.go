// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TestListeners: several addresses are one listener, also one that the machine has not got yet.
func TestListeners(t *testing.T) {
	listeners, err := Open(Options{}.Address(), 0, netip.MustParseAddr("127.42.7.1"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listeners.Addr().String())
	for _, host := range []string{"127.0.0.1", "127.42.7.1"} {
		c, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		got, err := listeners.Accept()
		if err != nil || got.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("%s: %v", host, err)
		}
		_ = c.Close()
		_ = got.Close()
	}
	if err := errors.Join(listeners.Close(), listeners.Close()); err != nil {
		t.Error(err)
	}
	if _, err := listeners.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	far, err := Open(Options{}.Address(), 0, netip.MustParseAddr("198.51.100.1"))
	if err != nil {
		t.Fatalf("an address that is not there yet: %v", err)
	}
	_ = far.Close()
	if _, err := listen(netip.MustParseAddr("fd00:dead::1"), 0); err == nil ||
		!strings.Contains(err.Error(), "this machine has no address") {
		t.Errorf("an address that no machine has: %v", err)
	}
}
