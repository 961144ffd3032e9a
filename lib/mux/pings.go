// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/binary"
	"errors"
	"time"
)

// maxPings is the maximum number of pings in the time between two of a well-behaved peer. yamux starts a goroutine for
// each, which waits while the peer does not read the answers.
const maxPings = 16

var errPings = errors.New("the other side sends pings without end")

// Frames of yamux: version, type, two bytes of flags, four of the stream, four of the length, then data.
const (
	frameHeader = 12
	typeData    = 0
	typePing    = 2
	flagRequest = 1 // of a ping, as opposed to its answer
)

// pings counts the pings in a stream of frames.
type pings struct {
	head  [frameHeader]byte
	have  int
	skip  uint32 // of the current frame's data
	count int
	since time.Time
}

// pass looks at the next bytes. An error means that they must not reach yamux.
func (g *pings) pass(p []byte) error {
	for len(p) > 0 {
		if g.skip > 0 {
			n := min(g.skip, uint32(len(p))) // a read of less than 4 GiB
			g.skip -= n
			p = p[n:]
			continue
		}
		n := copy(g.head[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < frameHeader {
			return nil
		}
		g.have = 0
		switch g.head[1] {
		case typeData:
			g.skip = binary.BigEndian.Uint32(g.head[8:])
		case typePing:
			if err := g.ping(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *pings) ping() error {
	if binary.BigEndian.Uint16(g.head[2:])&flagRequest == 0 {
		return nil
	}
	if now := time.Now(); now.Sub(g.since) > askEvery {
		g.since = now
		g.count = 0
	}
	if g.count++; g.count > maxPings {
		return errPings
	}
	return nil
}
