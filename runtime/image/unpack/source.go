// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"io"
)

// Source reads a layer's compressed bytes. Verify, called after the last read, checks their digest. Errors of reading
// that wrap ErrFetch are of the transfer, all others are of the layer's content or of the disk.
type Source interface {
	io.ReadCloser
	Verify() error
}

// ErrFetch marks errors of a transfer.
var ErrFetch = errors.New("fetch blob")

// Trusted is a source without a digest of the compressed bytes; the layer's diff id is checked in any case.
type Trusted struct{ io.ReadCloser }

// Verify implements Source.
func (Trusted) Verify() error { return nil }
