// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"keelson/runtime/image/manifest"
)

const (
	// maxWindow bounds the memory that a zstd frame can require; "zstd --long=27" needs 128 MiB.
	maxWindow = 128 << 20
	// minWindow is what each zstd stream counts for at least. Most need no more.
	minWindow = 8 << 20
)

// Windows bounds the windows of all zstd streams of a store together, so that a few layers do not take a helper's
// memory.
type Windows = semaphore.Weighted

// NewWindows returns windows of which none is in use.
func NewWindows() *Windows { return semaphore.NewWeighted(maxWindow) }

var (
	gzipMagic = []byte{0x1f, 0x8b, 0x08}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	// skipMagic follows the first byte (0x50 to 0x5f) of a zstd skippable frame, with which zstd:chunked archives may
	// start.
	skipMagic = []byte{0x2a, 0x4d, 0x18}
)

// Decompress detects the compression from the first bytes, because media types of registries are not reliable. Plain
// bytes pass through. A zstd stream waits for its window; Close gives that back. all may be nil: no limit.
func Decompress(ctx context.Context, r io.Reader, all *Windows) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 128<<10)
	head, err := br.Peek(4)
	if err != nil && len(head) == 0 && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case !Compressed(head):
		return io.NopCloser(br), nil
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("%w: gzip: %w", manifest.ErrInvalid, err)
		}
		return z, nil
	}
	give := func() {}
	if all != nil {
		need := windowOf(br)
		if err := all.Acquire(ctx, need); err != nil {
			return nil, err
		}
		give = sync.OnceFunc(func() { all.Release(need) })
	}
	z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<62),
		zstd.WithDecoderConcurrency(2))
	if err != nil {
		give()
		return nil, fmt.Errorf("%w: zstd: %w", manifest.ErrInvalid, err)
	}
	return &zstdReader{ReadCloser: z.IOReadCloser(), give: give}, nil
}

// zstdReader gives its window back when it is closed.
type zstdReader struct {
	io.ReadCloser
	give func()
}

func (z *zstdReader) Close() error {
	defer z.give()
	return z.ReadCloser.Close()
}

// windowOf returns the window that the first frame of a zstd stream needs.
func windowOf(r *bufio.Reader) int64 {
	var h zstd.Header
	head, _ := r.Peek(zstd.HeaderMaxSize) // a short stream has less
	if err := h.Decode(head); err != nil {
		return minWindow
	}
	return int64(min(max(h.WindowSize, minWindow), maxWindow)) // bounded
}

// Compressed reports whether the first bytes are those of gzip or zstd.
func Compressed(head []byte) bool {
	return bytes.HasPrefix(head, gzipMagic) || bytes.Equal(head, zstdMagic) || len(head) == 4 &&
		head[0]&0xf0 == 0x50 && bytes.Equal(head[1:], skipMagic)
}
