// SPDX-License-Identifier: Apache-2.0

// Package deflate keeps bytes small that are rarely read.
package deflate

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"sync"
)

// Packed is compressed bytes. Its zero value is no bytes.
type Packed struct {
	bytes []byte
	size  int
}

// writers have the state of a compression, about 700 kB each.
var writers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // fails for an unknown level alone
	return w
}}

// Pack compresses b, at about 100 MB a second.
func Pack(b []byte) Packed {
	w, _ := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	_, _ = w.Write(b) // a buffer takes everything
	_ = w.Close()
	return Packed{bytes.Clone(out.Bytes()), len(b)}
}

// Size is the number of bytes that Unpack returns.
func (p Packed) Size() int { return p.size }

// Unpack returns what Pack compressed. It panics where p is not from Pack: the bytes never leave this process.
func (p Packed) Unpack() []byte {
	if p.size == 0 {
		return nil
	}
	out := make([]byte, p.size)
	if _, err := io.ReadFull(flate.NewReader(bytes.NewReader(p.bytes)), out); err != nil {
		panic(fmt.Sprintf("deflate: unpack %d bytes: %v", p.size, err))
	}
	return out
}
