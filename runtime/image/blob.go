// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

var (
	// errFetch marks errors of the transfer from the registry, as opposed to errors in the layer's content.
	errFetch          = errors.New("fetch blob")
	errConnectionLost = errors.New("connection lost")
	errStalled        = errors.New("no data for a minute")
)

const (
	blobTries = 5
	stallTime = time.Minute
)

// blobReader streams a blob. After a broken connection it requests the remaining bytes. Verify checks the digest of all
// bytes.
type blobReader struct {
	ctx    func() context.Context // of the pull
	repo   *repository
	url    string
	digest string
	size   int64 // as the manifest says
	meter  *meter
	pause  func(context.Context, int) error

	body   io.ReadCloser
	cancel context.CancelFunc
	stall  *time.Timer
	sum    hash.Hash
	at     int64
	tries  int
}

// blob opens a blob. It makes the first request itself, so that a refusal is returned here and not by Read.
func (r *repository) blob(ctx context.Context, digest string, size int64, m *meter) (*blobReader, error) {
	u := url.URL{
		Scheme: r.repo.Scheme(),
		Host:   r.repo.RegistryStr(),
		Path:   "/v2/" + r.repo.RepositoryStr() + "/blobs/" + digest,
	}
	b := &blobReader{
		ctx:    func() context.Context { return ctx },
		repo:   r,
		url:    u.String(),
		digest: digest,
		size:   size,
		meter:  m,
		sum:    sha256.New(),
		pause:  backoff,
	}
	if err := b.open(); err != nil {
		return nil, fmt.Errorf("%w: %w", errFetch, err)
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url, nil)
	if err != nil {
		cancel(nil)
		return err
	}
	if b.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", b.at))
	}
	resp, err := (&http.Client{Transport: b.repo.rt}).Do(req)
	if err != nil {
		cancel(nil)
		return err
	}
	if err := b.accept(resp); err != nil {
		cancel(nil)
		return errors.Join(err, resp.Body.Close())
	}
	b.body = resp.Body
	b.cancel = func() { cancel(nil) }
	b.stall = time.AfterFunc(stallTime, func() { cancel(errStalled) })
	return nil
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
		if got, want := resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", b.at); !strings.HasPrefix(got,
			want) {
			return fmt.Errorf("registry resumed at %q, asked for %q", got, want)
		}
		return nil
	}
	// The registry does not support ranges and sends the whole blob.
	if _, err := io.CopyN(io.Discard, resp.Body, b.at); err != nil {
		return fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	return nil
}

func (b *blobReader) Read(p []byte) (int, error) {
	for {
		if b.body == nil {
			if err := b.reconnect(); err != nil {
				return 0, fmt.Errorf("%w %s: %w", errFetch, b.digest, err)
			}
		}
		b.stall.Reset(stallTime)
		n, err := b.body.Read(p)
		b.stall.Stop()
		if n > 0 {
			b.at += int64(n)
			b.sum.Write(p[:n])
			b.meter.add(int64(n))
			if b.at > b.size {
				return 0, fmt.Errorf("%w: blob %s is longer than the %d bytes that its manifest says", ErrInvalid,
					b.digest, b.size)
			}
			b.tries = 0
			return n, nil
		}
		if errors.Is(err, io.EOF) && b.at >= b.size {
			return 0, io.EOF
		}
		if err != nil {
			b.drop()
			if b.ctx().Err() != nil {
				return 0, context.Cause(b.ctx())
			}
		}
	}
}

// reconnect requests the remaining bytes, up to blobTries times in all.
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
		if errors.As(err, &te) && !te.Temporary() {
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
	b.stall.Stop()
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
		return fmt.Errorf("%w: blob %s has digest %s and %d bytes, want %d", ErrInvalid, b.digest, got, b.at, b.size)
	}
	return nil
}

func isReset(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
