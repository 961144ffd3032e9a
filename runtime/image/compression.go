// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a zstd frame can require; "zstd --long=27" needs 128 MiB.
const maxWindow = 128 << 20

var (
	gzipMagic = []byte{0x1f, 0x8b, 0x08}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	// skipMagic follows the first byte (0x50 to 0x5f) of a zstd skippable frame, with which zstd:chunked archives may
	// start.
	skipMagic = []byte{0x2a, 0x4d, 0x18}
)

// decompress detects the compression from the first bytes, because media types of registries are not reliable. Plain
// bytes pass through.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 128<<10)
	head, err := br.Peek(4)
	if err != nil && len(head) == 0 && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case !hasMagic(head):
		return io.NopCloser(br), nil
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("%w: gzip: %w", ErrInvalid, err)
		}
		return z, nil
	}
	z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<62),
		zstd.WithDecoderConcurrency(2))
	if err != nil {
		return nil, fmt.Errorf("%w: zstd: %w", ErrInvalid, err)
	}
	return z.IOReadCloser(), nil
}

// hasMagic reports whether the first bytes are those of gzip or zstd.
func hasMagic(head []byte) bool {
	return bytes.HasPrefix(head, gzipMagic) || bytes.Equal(head, zstdMagic) || len(head) == 4 &&
		head[0]&0xf0 == 0x50 && bytes.Equal(head[1:], skipMagic)
}
