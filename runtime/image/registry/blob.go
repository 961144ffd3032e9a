// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

var (
	errConnectionLost = errors.New("connection lost")
	errStalled        = errors.New("no data for a minute")
	errSlow           = errors.New("too slow: the registry sends less than 4 KiB a second")
)

const (
	blobTries = 5
	openTime  = 2 * time.Minute // limits a request until its body begins, with redirects and tokens
)

// blobReader streams a blob. After a broken connection it requests the remaining bytes. Verify checks the digest of all
// bytes.
type blobReader struct {
	ctx    func() context.Context // of the pull
	repo   *Repository
	url    string
	digest string
	size   int64         // as the manifest says
	count  func(n int64) // is called with the bytes that have come
	pause  func(context.Context, int) error

	body   io.ReadCloser
	cancel context.CancelFunc
	pace   *pace
	sum    hash.Hash
	at     int64
	mark   int64 // where tries was last reset
	tries  int   // for the minBytes from there
}

// Blob opens a blob. count is called with the number of bytes of each read. It makes the first request itself, so that
// a refusal is returned here and not by Read.
func (r *Repository) Blob(ctx context.Context, digest string, size int64, count func(int64)) (unpack.Source, error) {
	ctx = context.WithValue(ctx, layerRequest{}, true)
	b := &blobReader{
		ctx:    func() context.Context { return ctx },
		repo:   r,
		url:    r.url("blobs", digest),
		digest: digest,
		size:   size,
		count:  count,
		sum:    sha256.New(),
		pause:  backoff,
	}
	if err := b.open(); err != nil {
		return nil, fmt.Errorf("%w: %w", unpack.ErrFetch, err)
	}
	return b, nil
}

// backoff waits before try n (1 for the second request): 0.2, 0.6, 1.8, 5.4 s.
func backoff(ctx context.Context, n int) error {
	d := 200 * time.Millisecond
	for range n - 1 {
		d *= 3
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open requests the bytes from offset b.at on.
func (b *blobReader) open() error {
	ctx, cancel := context.WithCancelCause(b.ctx())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url, http.NoBody)
	if err != nil {
		cancel(nil)
		return err
	}
	if b.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", b.at))
	}
	late := time.AfterFunc(openTime, func() { cancel(errSlow) })
	resp, err := (&http.Client{Transport: b.repo.rt}).Do(req)
	if err == nil {
		err = b.accept(resp)
	}
	late.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), errSlow) {
			err = errSlow
		}
		cancel(nil)
		if resp != nil {
			_ = resp.Body.Close() // the first error is more useful
		}
		return describeAnswer(b.repo.repo.RegistryStr(), err)
	}
	b.body = resp.Body
	b.cancel = func() { cancel(nil) }
	b.pace = newPace(func() { cancel(errSlow) })
	return b.skip(resp)
}

// accept checks the response's status and, after a resumption, its offset.
func (b *blobReader) accept(resp *http.Response) error {
	if b.at == 0 {
		return transport.CheckError(resp, http.StatusOK)
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusPartialContent {
		if want := fmt.Sprintf("bytes %d-", b.at); !strings.HasPrefix(resp.Header.Get("Content-Range"), want) {
			return &answerError{
				text: fmt.Sprintf("%s resumes a transfer at another place than %d", b.repo.repo.RegistryStr(), b.at),
			}
		}
	}
	return nil
}

// skip reads the bytes that are here already, when the registry supports no ranges and sends the whole blob.
func (b *blobReader) skip(resp *http.Response) error {
	if b.at == 0 || resp.StatusCode == http.StatusPartialContent {
		return nil
	}
	if _, err := io.CopyN(io.Discard, paced{b.pace, b.body}, b.at); err != nil {
		err = b.broken(err)
		b.drop()
		return err
	}
	return nil
}

func (b *blobReader) Read(p []byte) (int, error) {
	for {
		if b.body == nil {
			if err := b.reconnect(); err != nil {
				return 0, fmt.Errorf("%w %s: %w", unpack.ErrFetch, b.digest, err)
			}
		}
		n, err := b.pace.read(b.body, p)
		if n > 0 {
			b.at += int64(n)
			b.sum.Write(p[:n])
			b.count(int64(n))
			if b.at > b.size {
				return 0, fmt.Errorf("%w: blob %s is longer than the %d bytes that its manifest says",
					manifest.ErrInvalid,
					b.digest, b.size)
			}
			if b.at-b.mark >= minBytes {
				b.mark = b.at
				b.tries = 0
			}
			return n, nil
		}
		if errors.Is(err, io.EOF) && b.at >= b.size {
			return 0, io.EOF
		}
		if err != nil {
			err = b.broken(err)
			b.drop()
			if b.ctx().Err() != nil {
				return 0, context.Cause(b.ctx())
			}
			if errors.Is(err, errSlow) {
				return 0, fmt.Errorf("%w %s: %w", unpack.ErrFetch, b.digest, err)
			}
		}
	}
}

// broken returns why a body ended early: errSlow if it sent too little and errStalled if it sent nothing for deadTime,
// which a connection that broke silently does, otherwise a lost connection.
func (b *blobReader) broken(err error) error {
	host := b.repo.repo.RegistryStr()
	switch {
	case b.pace.late.Load() && b.pace.quiet < deadTime:
		return describeAnswer(host, errSlow)
	case b.pace.late.Load():
		return describeAnswer(host, errStalled)
	}
	return describeAnswer(host, fmt.Errorf("%w: %w", errConnectionLost, err))
}

// reconnect requests the remaining bytes, up to blobTries times for each minBytes.
func (b *blobReader) reconnect() error {
	for {
		b.tries++
		if b.tries >= blobTries {
			return fmt.Errorf("%w at %d of %d bytes, %d times", errConnectionLost, b.at, b.size, b.tries)
		}
		if err := b.pause(b.ctx(), b.tries); err != nil {
			return err
		}
		err := b.open()
		if err == nil {
			return nil
		}
		var te *transport.Error
		if errors.As(err, &te) && !te.Temporary() || errors.Is(err, errSlow) {
			return err
		}
		if b.ctx().Err() != nil {
			return context.Cause(b.ctx())
		}
	}
}

func (b *blobReader) drop() {
	if b.body == nil {
		return
	}
	b.pace.timer.Stop()
	b.cancel()
	_ = b.body.Close() // the connection is not used again
	b.body = nil
}

// Close ends the transfer.
func (b *blobReader) Close() error {
	b.drop()
	return nil
}

// Verify reads the bytes that the unpacker did not need and checks size and digest.
func (b *blobReader) Verify() error {
	if _, err := io.Copy(io.Discard, b); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(b.sum.Sum(nil)); got != b.digest || b.at != b.size {
		return fmt.Errorf("%w: blob %s has digest %s and %d bytes, want %d", manifest.ErrInvalid, b.digest, got, b.at,
			b.size)
	}
	return nil
}

func isReset(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
