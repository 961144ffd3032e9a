// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"keelson/lib/mux"
)

// TestDeadlinesPass: a connection whose deadline has passed is good again with a later one, as TLS and HTTP expect it.
func TestDeadlinesPass(t *testing.T) {
	near, far := net.Pipe()
	opener, err := mux.Opener(near)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opener.Close() }()
	accepter, err := mux.Accepter(far)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepter.Close() }()
	a, err := opener.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	b, err := accepter.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	from, to := mux.Conn(a), mux.Conn(b)
	if err := to.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	_, err = to.Read(buf)
	var timeout net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("after the deadline: %v", err)
	}
	if err := to.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := to.Read(buf); string(buf[:n]) != "hello" || err != nil {
		t.Errorf("without a deadline: %q, %v", buf[:n], err)
	}
}
