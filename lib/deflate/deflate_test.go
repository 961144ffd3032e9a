// SPDX-License-Identifier: Apache-2.0

package deflate

import (
	"bytes"
	"testing"
)

func TestPack(t *testing.T) {
	text := bytes.Repeat([]byte("a word of a schema, "), 5000)
	for _, b := range [][]byte{nil, {0}, []byte("short"), text} {
		p := Pack(b)
		if got := p.Unpack(); !bytes.Equal(got, b) || p.Size() != len(b) {
			t.Errorf("%d bytes became %d of %d", len(b), len(got), p.Size())
		}
	}
	if p := Pack(text); len(p.bytes) > len(text)/20 {
		t.Errorf("%d bytes take %d", len(text), len(p.bytes))
	}
	if got := (Packed{}).Unpack(); got != nil {
		t.Errorf("no bytes became %q", got)
	}
}

func BenchmarkPack(b *testing.B) {
	text := bytes.Repeat([]byte("a word of a schema, "), 5000)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		Pack(text)
	}
}
