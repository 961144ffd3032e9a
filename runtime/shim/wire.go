// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxMessage bounds one message. An OCI spec with thousands of environment variables and mounts fits.
const maxMessage = 16 << 20

// maxFiles is the maximum number of descriptors of one message.
const maxFiles = 8

// Conn is a connection with this protocol's framing: four bytes of length, big endian, then JSON; descriptors are sent
// with the length. It is not safe for concurrent use in the same direction.
type Conn struct {
	c *net.UnixConn
}

// NewConn wraps an accepted or dialled connection.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c} }

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Unix returns the underlying connection.
func (c *Conn) Unix() *net.UnixConn { return c.c }

// Peer identifies the process at the other end; for a dialled connection that is the listening one.
func (c *Conn) Peer() (*unix.Ucred, error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("identify peer: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("identify peer: %w", err)
	}
	return cred, cerr
}

// Send writes one message with descriptors. The caller closes the descriptors.
func (c *Conn) Send(v any, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(body) > maxMessage {
		return fmt.Errorf("send message: %d bytes, more than %d", len(body), maxMessage)
	}
	frame := make([]byte, 4, 4+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body))) // bounded above
	frame = append(frame, body...)
	if len(files) == 0 {
		_, err = c.c.Write(frame)
		return err
	}
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	n, _, err := c.c.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
	if err == nil && n < len(frame) {
		_, err = c.c.Write(frame[n:])
	}
	return err
}

// Receive reads one message into v and returns its descriptors. The end of the connection is io.EOF.
func (c *Conn) Receive(v any) ([]*os.File, error) {
	body, files, err := c.read()
	if err == nil {
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		CloseAll(files)
		return nil, err
	}
	return files, nil
}

func (c *Conn) read() ([]byte, []*os.File, error) {
	head := make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		return nil, nil, io.EOF
	}
	files, err := parseRights(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		CloseAll(files)
		return nil, nil, errors.New("receive message: too many descriptors")
	}
	if _, err := io.ReadFull(c.c, head[n:]); err != nil {
		CloseAll(files)
		return nil, nil, fmt.Errorf("receive message: %w", err)
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxMessage {
		CloseAll(files)
		return nil, nil, fmt.Errorf("receive message: %d bytes, more than %d", size, maxMessage)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.c, body); err != nil {
		CloseAll(files)
		return nil, nil, fmt.Errorf("receive message: %w", err)
	}
	return body, files, nil
}

func parseRights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse descriptors: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // another kind of control message
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

// CloseAll closes all files that are not nil.
func CloseAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // received, never written to
		}
	}
}

// WithSocket calls f with a short path to the socket in dir: a socket address is at most 107 bytes long, and paths of
// data directories may be longer.
func WithSocket(dir string, f func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return f(filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), SocketName))
}
