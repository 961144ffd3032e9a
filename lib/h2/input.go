// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"fmt"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// input are the frames that a client sends.
type input struct {
	*http2.Framer

	buffered *bufio.Reader
}

func newInput(from io.Reader, maxHeader uint32) input {
	in := input{buffered: bufio.NewReaderSize(from, 4<<10)}
	in.Framer = http2.NewFramer(io.Discard, in.buffered)
	in.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	in.MaxHeaderListSize = maxHeader
	in.SetMaxReadFrameSize(defaultFrame)
	in.SetReuseFrames()
	return in
}

// readPreface reads what a client sends first.
func (in input) readPreface() error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in.buffered, preface); err != nil {
		return fmt.Errorf("read preface: %w", err)
	}
	if string(preface) != http2.ClientPreface {
		return fmt.Errorf("read preface: %q", preface)
	}
	return nil
}

// follows reports whether the next frame is buffered completely, so that queued frames can wait for those that it
// causes.
func (in input) follows() bool {
	n := in.buffered.Buffered()
	if n < frameHeader {
		return false
	}
	b, err := in.buffered.Peek(frameHeader)
	return err == nil && n-frameHeader >= int(b[0])<<16|int(b[1])<<8|int(b[2])
}
