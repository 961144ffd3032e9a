// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/json"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzReceive: Receive returns a message or an error for any input, and io.EOF at the end of the connection.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x07{\"a\":1}\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x09{}"))
	f.Add([]byte("\xff\xff\xff\xff{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return // more than the connection holds
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ends := [2]net.Conn{}
		for i, fd := range fds {
			file := os.NewFile(uintptr(fd), "end")
			if ends[i], err = net.FileConn(file); err != nil {
				t.Fatal(err)
			}
			_ = file.Close()
		}
		here, _ := ends[1].(*net.UnixConn)
		defer func() { _ = here.Close() }()
		if _, err := ends[0].Write(b); err != nil {
			t.Fatal(err)
		}
		_ = ends[0].Close()
		c := NewConn(here)
		for range len(b) + 1 {
			var v json.RawMessage
			files, err := c.Receive(&v)
			if err != nil {
				return
			}
			if len(files) > 0 {
				t.Errorf("%q: %d files that were not sent", b, len(files))
			}
		}
		t.Errorf("%q: more messages than bytes", b)
	})
}
