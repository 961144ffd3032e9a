// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
)

// StreamType is the Content-Type of a watch in media.
func StreamType(m Media) string {
	if m == JSON {
		return TypeJSON
	}
	return m.String() + ";stream=watch"
}

// AppendFrame appends one watch event with an encoded object: a JSON object on a line, or a length-prefixed protobuf
// WatchEvent.
func AppendFrame(b []byte, m Media, event string, object []byte) []byte {
	if m != Proto {
		b = append(b, `{"type":"`...)
		b = append(b, event...)
		b = append(b, `","object":`...)
		b = append(b, bytes.TrimSuffix(object, []byte("\n"))...)
		return append(b, "}\n"...)
	}
	// WatchEvent{type, object: RawExtension{raw}}
	ext := 1 + uvarintLen(len(object)) + len(object)
	size := 1 + uvarintLen(len(event)) + len(event) + 1 + uvarintLen(ext) + ext
	b = binary.BigEndian.AppendUint32(b, uint32(size)) // objects are limited to a few MB
	b = appendString(b, tagFirst, event)
	b = binary.AppendUvarint(append(b, tagSecond), uint64(ext))
	b = binary.AppendUvarint(append(b, tagFirst), uint64(len(object)))
	return append(b, object...)
}
