// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/streaming/pkg/httpstream"

	"keelson/lib/spdy"
)

// Bounds of a kubelet's response. The libraries read headers, error texts and frames of any size into memory, and a
// node may send them without end.
const (
	maxResponseHead = 64 << 10
	maxErrorStream  = 64 << 10
)

// boundedTransport returns a transport for the upgrade alone, which bounds the responses of connections of via.
func boundedTransport(via http.RoundTripper) (http.RoundTripper, error) {
	dial, err := utilnet.DialerFor(via)
	if err != nil {
		return nil, err
	}
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &boundedConn{Conn: conn}, nil
	}}, nil
}

// boundedConn is a connection to a kubelet: the head of its response, then SPDY frames, or else an error text.
type boundedConn struct {
	net.Conn
	response io.Reader // nil: nothing is read yet
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.response == nil {
		if err := c.readHead(); err != nil {
			return 0, err
		}
	}
	return c.response.Read(p)
}

func (c *boundedConn) readHead() error {
	r := bufio.NewReader(c.Conn)
	var head bytes.Buffer
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if head.Len()+len(line) > maxResponseHead {
			return errors.New("the kubelet's response header is too large")
		}
		head.Write(line)
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			break
		}
	}
	rest := io.LimitReader(r, maxErrorText)
	if bytes.HasPrefix(head.Bytes(), []byte("HTTP/1.1 101 ")) {
		frames, err := spdy.New(c.Conn, r, 0) // kubelets open no streams
		if err != nil {
			return err
		}
		rest = frames
	}
	c.response = io.MultiReader(&head, rest)
	return nil
}

// boundedUpgrader makes connections whose error stream is bounded: it has one Status, which is read as a whole.
type boundedUpgrader struct{ httpstream.UpgradeRoundTripper }

func (u boundedUpgrader) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	conn, err := u.UpgradeRoundTripper.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	return boundedErrors{conn}, nil
}

type boundedErrors struct{ httpstream.Connection }

func (c boundedErrors) CreateStream(headers http.Header) (httpstream.Stream, error) {
	stream, err := c.Connection.CreateStream(headers)
	if err != nil || headers.Get(corev1.StreamType) != corev1.StreamTypeError {
		return stream, err
	}
	return &boundedStream{Stream: stream, conn: c.Connection, left: maxErrorStream}, nil
}

// boundedStream ends its connection after too many bytes.
type boundedStream struct {
	httpstream.Stream
	conn httpstream.Connection
	left int
}

func (s *boundedStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if s.left -= n; s.left < 0 {
		_ = s.conn.Close() // this error matters more
		return 0, errors.New("the kubelet's error is too large")
	}
	return n, err
}
