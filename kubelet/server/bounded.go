// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"keelson/lib/spdy"
)

// maxStreams bounds the open streams of one connection. An exec has five, a port-forward two for each connection.
const maxStreams = 512

// maxMessage bounds a websocket frame of a client, which the runtime keeps until its command has read it.
const maxMessage = 1 << 20

// boundedUpgrade bounds what the runtime's streaming server must keep of the frames of an upgraded connection. Users
// with the right to exec control them: the API server passes them on unread.
type boundedUpgrade struct {
	http.ResponseWriter
	protocol string // of the request's Upgrade header
}

// Unwrap is for http.ResponseController.
func (b boundedUpgrade) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// Hijack implements http.Hijacker.
func (b boundedUpgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(b.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	var bounded net.Conn
	switch {
	case strings.HasPrefix(strings.ToLower(b.protocol), "spdy/"):
		bounded, err = spdy.New(upgraded{conn}, rw.Reader, maxStreams)
	case strings.EqualFold(b.protocol, "websocket"):
		bounded = &websocketConn{Conn: conn, r: rw.Reader}
	default:
		err = fmt.Errorf("streams are not served with the protocol %q", b.protocol)
	}
	if err != nil {
		_ = conn.Close() // the error matters
		return nil, nil, err
	}
	return bounded, rw, nil
}

// upgraded hides the type of a connection, so that io.Copy does not read around the bounds.
type upgraded struct{ net.Conn }

// websocketConn is a connection whose peer sends no frame larger than maxMessage.
type websocketConn struct {
	net.Conn
	r     io.Reader
	ready []byte // of a header
	rest  uint64 // of the current frame's payload
}

func (c *websocketConn) Read(p []byte) (int, error) {
	if len(c.ready) == 0 && c.rest == 0 {
		if err := c.header(); err != nil {
			return 0, err
		}
	}
	if len(c.ready) > 0 {
		n := copy(p, c.ready)
		c.ready = c.ready[n:]
		return n, nil
	}
	n, err := c.r.Read(p[:min(uint64(len(p)), c.rest)])
	c.rest -= uint64(n)
	return n, err
}

// header reads a frame's header (RFC 6455, 5.2): two bytes, the second one with the length or its size, the length, and
// a mask that the peer applies to the payload.
func (c *websocketConn) header() error {
	var head [14]byte
	if _, err := io.ReadFull(c.r, head[:2]); err != nil {
		return err
	}
	size := 2
	masked := head[1]&0x80 != 0
	length := uint64(head[1] & 0x7f)
	extended := 0
	switch length {
	case 126:
		extended = 2
	case 127:
		extended = 8
	}
	if _, err := io.ReadFull(c.r, head[size:size+extended]); err != nil {
		return err
	}
	switch extended {
	case 2:
		length = uint64(binary.BigEndian.Uint16(head[2:4]))
	case 8:
		length = binary.BigEndian.Uint64(head[2:10])
	}
	size += extended
	if length > maxMessage {
		return fmt.Errorf("the client sent a websocket message of %d bytes; at most %d are allowed", length, maxMessage)
	}
	if masked {
		if _, err := io.ReadFull(c.r, head[size:size+4]); err != nil {
			return err
		}
		size += 4
	}
	c.ready = head[:size]
	c.rest = length
	return nil
}
