// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// control are the queued control frames of a connection: acknowledgements, window updates, resets. conn.mu guards them.
// The reader only queues frames, since a write may block; who has queued one calls writer.kick when it does not hold
// conn.mu any more.
type control struct {
	frames []byte
	spoken atomic.Bool // there are frames
}

// add queues a frame.
func (q *control) add(t http2.FrameType, flags http2.Flags, id uint32, payload []byte) {
	q.frames = append(appendFrame(q.frames, t, flags, id, len(payload)), payload...)
	q.spoken.Store(true)
}

// reset queues the reset of a stream.
func (q *control) reset(id uint32, code http2.ErrCode) {
	q.add(http2.FrameRSTStream, 0, id, binary.BigEndian.AppendUint32(nil, uint32(code)))
}

// window queues a window update of a stream, or of the connection with id 0; n is at most a window.
func (q *control) window(id uint32, n int64) {
	q.add(http2.FrameWindowUpdate, 0, id, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// goAway queues the end of the connection after the stream last.
func (q *control) goAway(last uint32, code http2.ErrCode) {
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), uint32(code))
	q.add(http2.FrameGoAway, 0, 0, b)
}

// tooMany reports whether a client that causes frames does not read them.
func (q *control) tooMany() bool { return len(q.frames) > mostControl }

// moveTo appends the frames to b and empties the queue.
func (q *control) moveTo(b []byte) []byte {
	q.spoken.Store(false)
	b = append(b, q.frames...)
	q.frames = q.frames[:0]
	return b
}
