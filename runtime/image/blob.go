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
	// errFetch marks errors that came from the registry while a layer was being read, not from the layer's bytes.
	errFetch          = errors.New("fetch blob")
	errConnectionLost = errors.New("connection lost")
	errStalled        = errors.New("no data for a minute")
)

const (
	blobTries = 5
	stallTime = time.Minute
)

// blobReader streams a blob and survives broken connections: it asks for the rest from where it was. The digest of all
// bytes is checked at the end.
type blobReader struct {
	ctx    func() context.Context // of the pull that this reader belongs to
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

// blob opens a blob; the first request is made here so that its refusal has the plainest error.
func (r *repository) blob(ctx context.Context, digest string, size int64, m *meter) (*blobReader, error) {
	u := url.URL{
		Scheme: r.repo.Scheme(), Host: r.repo.RegistryStr(),
		Path: "/v2/" + r.repo.RepositoryStr() + "/blobs/" + digest,
	}
	b := &blobReader{
		ctx: func() context.Context { return ctx }, repo: r, url: u.String(), digest: digest, size: size,
		meter: m, sum: sha256.New(), pause: backoff,
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

// open requests the bytes from b.at on.
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
	b.body, b.cancel = resp.Body, func() { cancel(nil) }
	b.stall = time.AfterFunc(stallTime, func() { cancel(errStalled) })
	return nil
}

// accept checks the answer's status and, after a resumption, that it begins where we were.
func (b *blobReader) accept(resp *http.Response) error {
	if b.at == 0 {
		return transport.CheckError(resp, http.StatusOK)
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusPartialContent {
		if got, want := resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", b.at); !strings.HasPrefix(got, want) {
			return fmt.Errorf("registry resumed at %q, asked for %q", got, want)
		}
		return nil
	}
	// A registry without ranges starts over.
	if _, err := io.CopyN(io.Discard, resp.Body, b.at); err != nil {
		return fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	return nil
}

func (b *blobReader) Read(p []byte) (int, error) {
	for {
		if b.body == nil {
			if err := b.again(); err != nil {
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
				return 0, fmt.Errorf("%w: blob %s is longer than the %d bytes that its manifest says", ErrInvalid, b.digest, b.size)
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

// again reconnects, several times if need be.
func (b *blobReader) again() error {
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
	_ = b.body.Close() // the connection is given up, or was read to its end
	b.body = nil
}

// Close ends the transfer.
func (b *blobReader) Close() error { b.drop(); return nil }

// Verify reads what the unpacker left and compares size and digest.
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
