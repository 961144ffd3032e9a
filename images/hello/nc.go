// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

var ncSyntax = optionSyntax{letters: "lzvnp:w:", usage: "nc [-z] [-v] [-w SECONDS] HOST PORT or nc -l [-p] PORT"}

// nc connects its input and output to a TCP port. -z: only connect; -l: wait for one connection; -w: how long to wait
// for a connection, and then for each piece of what the other side sends.
func nc(args []string, std stdio) int {
	opts, words, err := ncSyntax.parse(args)
	if err != nil {
		return complain(std, "nc", err)
	}
	var wait time.Duration
	if w := opts.get('w', ""); w != "" {
		if wait, err = seconds(w); err != nil {
			return complain(std, "nc", err)
		}
	}
	host := ""
	port := opts.get('p', "")
	switch {
	case opts.has('l') && port == "" && len(words) > 0:
		host = joinHost(words[:len(words)-1])
		port = words[len(words)-1]
	case opts.has('l') && len(words) == 1:
		host = words[0]
	case !opts.has('l') && len(words) == 2:
		host = words[0]
		port = words[1]
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && !opts.has('l') || len(words) > 2 ||
		host == "" && !opts.has('l') {
		return complain(std, "nc", ncSyntax.wantUsage())
	}
	conn, err := connect(opts, net.JoinHostPort(host, port), wait, std)
	if err != nil {
		if opts.has('z') && !opts.has('v') {
			return 1
		}
		return complain(std, "nc", err)
	}
	defer func() { _ = conn.Close() }()
	if opts.has('z') {
		return 0
	}
	if err := relay(conn, wait, std); err != nil {
		return complain(std, "nc", err)
	}
	return 0
}

func joinHost(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// connect dials, or waits for one connection. With -v it says so.
func connect(opts options, addr string, wait time.Duration, std stdio) (net.Conn, error) {
	if !opts.has('l') {
		c, err := net.DialTimeout("tcp", addr, wait) //nolint:noctx // a program of its own: there is no context
		if err == nil && opts.has('v') {
			fmt.Fprintf(std.err, "%s (%s) open\n", addr, c.RemoteAddr())
		}
		return c, err
	}
	listener, err := net.Listen("tcp", addr) //nolint:noctx // a program of its own: there is no context
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	if opts.has('v') {
		fmt.Fprintf(std.err, "listening on %s\n", listener.Addr())
	}
	if t, ok := listener.(*net.TCPListener); ok && wait > 0 {
		if err := t.SetDeadline(time.Now().Add(wait)); err != nil {
			return nil, err
		}
	}
	c, err := listener.Accept()
	if err == nil && opts.has('v') {
		fmt.Fprintf(std.err, "connection from %s\n", c.RemoteAddr())
	}
	return c, err
}

// relay copies both ways until the other side has sent all, and what there is to read on the input is sent.
func relay(c net.Conn, wait time.Duration, std stdio) error {
	s := &sender{ended: make(chan struct{})}
	go s.send(c, std.in) // ends with the input, with the connection or with the process
	from := io.Reader(c)
	if wait > 0 {
		from = patient{c, wait}
	}
	if _, err := io.Copy(std.out, from); err != nil && !os.IsTimeout(err) {
		return err
	}
	s.settle()
	return nil
}

// sender copies the input to a connection.
type sender struct {
	pieces  atomic.Int64
	writing atomic.Bool
	ended   chan struct{}
}

// send passes the end of the input on.
func (s *sender) send(conn net.Conn, in io.Reader) {
	defer close(s.ended)
	buf := make([]byte, 32<<10)
	for {
		n, rerr := in.Read(buf)
		s.writing.Store(true)
		if _, err := conn.Write(buf[:n]); err != nil {
			return // it shows when the connection is read
		}
		s.writing.Store(false)
		s.pieces.Add(1)
		if rerr != nil {
			break
		}
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.CloseWrite() // the same
	}
}

// settle waits until all is sent, or until the input has been silent for a moment: a terminal does not end.
func (s *sender) settle() {
	const moment = 200 * time.Millisecond
	for last := int64(-1); ; {
		select {
		case <-s.ended:
			return
		case <-time.After(moment):
		}
		if n := s.pieces.Load(); n != last || s.writing.Load() {
			last = n
			continue
		}
		return
	}
}

// patient is a connection whose reads end after a time without anything to read.
type patient struct {
	net.Conn
	wait time.Duration
}

func (p patient) Read(b []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(p.wait)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}
