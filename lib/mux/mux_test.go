// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"

	"keelson/lib/mux"
)

// pair is a connection from one side to the other, over a carrier whose near end is wrapped.
func pair(t *testing.T, wrap func(net.Conn) net.Conn) (opener *mux.Session, from, to net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	opener, err := mux.Opener(wrap(near))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opener.Close() })
	accepter, err := mux.Accepter(far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepter.Close() })
	if from, err = opener.Open(); err != nil {
		t.Fatal(err)
	}
	if to, err = accepter.Accept(); err != nil {
		t.Fatal(err)
	}
	return opener, from, to
}

// TestDeadlinesPass: a connection whose deadline has passed is good again with a later one, as TLS and HTTP expect it.
func TestDeadlinesPass(t *testing.T) {
	_, from, to := pair(t, func(c net.Conn) net.Conn { return c })
	if err := to.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	_, err := to.Read(buf)
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

// busy reads and writes until both end, the writing because no one reads.
func busy(c net.Conn) (errs chan error) {
	errs = make(chan error, 2)
	go func() { // ends with the connection
		_, err := c.Read(make([]byte, 1))
		errs <- err
	}()
	go func() { // ends with the connection
		_, err := c.Write(make([]byte, 1<<20))
		errs <- err
	}()
	return errs
}

func bothEnd(t *testing.T, errs chan error, want ...error) {
	t.Helper()
	for range 2 {
		select {
		case err := <-errs:
			if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
				t.Errorf("a read or a write ended with %v, want one of %v", err, want)
			}
		case <-time.After(time.Minute):
			t.Fatal("a read or a write did not end")
		}
	}
}

// slow closes when it may.
type slow struct {
	net.Conn
	closing, may chan struct{}
}

func (s *slow) Close() error {
	close(s.closing)
	<-s.may
	return s.Conn.Close()
}

// TestEndSendsEverybodyAway: reads and writes end with the session, before yamux comes to their streams: they would
// keep the processors busy.
func TestEndSendsEverybodyAway(t *testing.T) {
	beneath := &slow{closing: make(chan struct{}), may: make(chan struct{})}
	session, from, _ := pair(t, func(c net.Conn) net.Conn {
		beneath.Conn = c
		return beneath
	})
	errs := busy(from)
	go func() { _ = session.Close() }() // ends when the carrier may close
	defer close(beneath.may)
	<-beneath.closing
	if err := from.SetReadDeadline(time.Time{}); !errors.Is(err, yamux.ErrSessionShutdown) {
		t.Errorf("a deadline after the end: %v", err)
	}
	bothEnd(t, errs, yamux.ErrSessionShutdown)
}

// TestCloseSendsEverybodyAway: as of any connection, also when the other side does not answer.
func TestCloseSendsEverybodyAway(t *testing.T) {
	_, from, _ := pair(t, func(c net.Conn) net.Conn { return c })
	errs := busy(from)
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	bothEnd(t, errs, net.ErrClosed, yamux.ErrStreamClosed)
}

// TestPingsWithoutEnd: yamux answers each ping by a goroutine, so a peer that sends them and reads nothing would fill
// the memory. The session ends; pings at their usual interval, between data that looks like pings, do not end it.
func TestPingsWithoutEnd(t *testing.T) {
	ping := []byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7}
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		opener, err := mux.Opener(near)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = opener.Close() }()
		go func() { _, _ = io.Copy(io.Discard, far) }() // ends with far
		data := append([]byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 240}, bytes.Repeat(ping, 20)...)
		for range 40 {
			if _, err := far.Write(append(ping, data...)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(31 * time.Second)
		}
		for range 17 {
			_, err = far.Write(ping)
		}
		select {
		case <-opener.Ended():
		case <-time.After(time.Second):
			t.Errorf("the session goes on after 17 pings, %v", err)
		}
	})
}
