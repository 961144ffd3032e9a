// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

const (
	maxArchiveEntries = 100_000
	maxArchiveNames   = 32 << 20 // bytes of all names and links, which are kept in memory
	maxLinks          = 16       // symlinks followed within an archive
)

// File is an archive whose files can be read in any order. Names in the archive are used as map keys only: no file
// is extracted under its name.
type File struct {
	data  io.ReaderAt
	close func() error
	files map[string]section
	links map[string]string
}

type section struct{ at, size int64 }

// Open reads the table of contents. A plain tar in a file is read in place; anything else is decompressed to a
// file in tmp, which Close removes.
func Open(ctx context.Context, r io.Reader, tmp string, lim unpack.Limits) (*File, error) {
	if f, ok := r.(*os.File); ok && isPlain(f) {
		return scan(f, func() error { return nil })
	}
	in := bufio.NewReaderSize(r, 128<<10) // unpack.Decompress uses it as its own
	packed := isCompressed(in)
	plain, err := unpack.Decompress(ctx, in, nil)
	if errors.Is(err, manifest.ErrInvalid) {
		return nil, notArchive("its compression is damaged", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = plain.Close() }()
	spool, err := os.CreateTemp(tmp, "import-")
	if err != nil {
		return nil, err
	}
	closeSpool := func() error { return errors.Join(spool.Close(), os.Remove(spool.Name())) }
	from := &ctxReader{done: ctx.Err, r: plain}
	n, err := io.Copy(lim.Space.Writer(spool), io.LimitReader(from, lim.Bytes+1))
	if packed && from.err != nil && ctx.Err() == nil {
		err = notArchive("its compression is damaged", from.err)
	}
	if err == nil && n > lim.Bytes {
		err = fmt.Errorf("%w: archive is larger than %d bytes", manifest.ErrInvalid, lim.Bytes)
	}
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, closeSpool())
	}
	t, err := scan(spool, closeSpool)
	if err != nil {
		return nil, errors.Join(err, closeSpool())
	}
	return t, nil
}

// ErrNotArchive means that an import is not an archive of images. The error says what it is instead.
var ErrNotArchive = errors.New("not an image archive")

type notArchiveError struct {
	why   string
	cause error
}

func notArchive(why string, cause error) error { return notArchiveError{why, cause} }

func (n notArchiveError) Error() string {
	text := ErrNotArchive.Error() + ": " + n.why
	if n.cause != nil {
		text += " (" + strings.TrimPrefix(n.cause.Error(), manifest.ErrInvalid.Error()+": ") + ")"
	}
	return text
}

func (n notArchiveError) Is(target error) bool {
	return target == ErrNotArchive || target == manifest.ErrInvalid
}
func (n notArchiveError) Unwrap() error { return n.cause }

// ctxReader fails once done returns an error. err is the error of the reader.
type ctxReader struct {
	done func() error
	r    io.Reader
	err  error
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.done(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// isCompressed reports whether decompress will decompress.
func isCompressed(r *bufio.Reader) bool {
	head, err := r.Peek(4)
	return err == nil && unpack.Compressed(head)
}

// isPlain reports whether f is a regular file, read from its start, that is not compressed.
func isPlain(f *os.File) bool {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return false
	}
	if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != 0 {
		return false
	}
	head := make([]byte, 4)
	n, err := f.ReadAt(head, 0)
	return err == nil && n == 4 && !unpack.Compressed(head)
}

// scan records the position of each file's content. Package tar reads up to the end of a header, so the position after
// Next is that of the content.
func scan(file *os.File, closeFile func() error) (*File, error) {
	t := &File{
		data:  file,
		close: closeFile,
		files: map[string]section{},
		links: map[string]string{},
	}
	fi, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Size() == 0 {
		return nil, notArchive("it is empty", nil)
	}
	tr := tar.NewReader(file)
	names := 0
	for i := range maxArchiveEntries {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil && i == 0 {
			return nil, notArchive("it is no tar archive, plain or compressed by gzip or zstd", nil)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: archive: %w", manifest.ErrInvalid, err)
		}
		if names += len(header.Name) + len(header.Linkname); names > maxArchiveNames {
			return nil, fmt.Errorf("%w: archive has names of more than %d bytes", manifest.ErrInvalid, maxArchiveNames)
		}
		name := entryName(header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			at, err := file.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if header.Size < 0 || at+header.Size > fi.Size() {
				return nil, fmt.Errorf("%w: archive ends within %.300q", manifest.ErrInvalid, name)
			}
			t.files[name] = section{at, header.Size}
		case tar.TypeSymlink:
			t.links[name] = entryName(path.Join(path.Dir(name), header.Linkname))
		case tar.TypeLink:
			t.links[name] = entryName(header.Linkname)
		}
	}
	return nil, fmt.Errorf("%w: archive has more than %d entries", manifest.ErrInvalid, maxArchiveEntries)
}

func entryName(n string) string { return strings.TrimPrefix(path.Clean("/"+n), "/") }

// Close closes the archive and removes what was unpacked to read it.
func (t *File) Close() error { return t.close() }

func (t *File) find(name string) (section, bool) {
	name = entryName(name)
	for range maxLinks {
		if s, ok := t.files[name]; ok {
			return s, true
		}
		to, ok := t.links[name]
		if !ok {
			return section{}, false
		}
		name = to
	}
	return section{}, false
}

func (t *File) has(name string) bool {
	_, ok := t.find(name)
	return ok
}

func (t *File) size(name string) (int64, bool) {
	s, ok := t.find(name)
	return s.size, ok
}

// bytes reads a small file.
func (t *File) bytes(name string) ([]byte, error) {
	s, ok := t.find(name)
	if !ok {
		return nil, fmt.Errorf("%w: archive lacks %.300q", manifest.ErrInvalid, name)
	}
	if s.size > manifest.MaxDocument {
		return nil, fmt.Errorf("%w: %.300q has %d bytes, at most %d are allowed", manifest.ErrInvalid, name, s.size,
			manifest.MaxDocument)
	}
	b := make([]byte, s.size)
	if _, err := t.data.ReadAt(b, s.at); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %.300q: %w", name, err)
	}
	return b, nil
}

// open streams a layer that is checked by its diff id only.
func (t *File) open(name string) (unpack.Source, error) {
	s, ok := t.find(name)
	if !ok {
		return nil, fmt.Errorf("%w: archive lacks %.300q", manifest.ErrInvalid, name)
	}
	return unpack.Trusted{ReadCloser: io.NopCloser(io.NewSectionReader(t.data, s.at, s.size))}, nil
}

func blobPath(digest string) string { return "blobs/sha256/" + manifest.HexOf(digest) }

// blob streams a layer of an OCI layout; Verify checks its digest.
func (t *File) blob(digest string) (unpack.Source, error) {
	rc, err := t.open(blobPath(digest))
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	return &digestReader{Reader: io.TeeReader(rc, sum), sum: sum, want: digest}, nil
}

// digestReader computes the digest of what is read.
type digestReader struct {
	io.Reader
	sum  hash.Hash
	want string
}

func (s *digestReader) Close() error { return nil }

func (s *digestReader) Verify() error {
	if _, err := io.Copy(io.Discard, s.Reader); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(s.sum.Sum(nil)); got != s.want {
		return fmt.Errorf("%w: blob %s has digest %s", manifest.ErrInvalid, s.want, got)
	}
	return nil
}

// Manifest implements manifest.Documents.
func (t *File) Manifest(_ context.Context, digest string) ([]byte, error) {
	return t.checked(digest)
}

// Config implements manifest.Documents.
func (t *File) Config(_ context.Context, digest string) ([]byte, error) { return t.checked(digest) }

// checked reads a manifest, index or config and checks its digest.
func (t *File) checked(digest string) ([]byte, error) {
	if !manifest.IsDigest(digest) {
		return nil, fmt.Errorf("%w: digest %.100q", manifest.ErrInvalid, digest)
	}
	b, err := t.bytes(blobPath(digest))
	if err != nil {
		return nil, err
	}
	if got := manifest.DigestOf(b); got != digest {
		return nil, fmt.Errorf("%w: blob %s has digest %s", manifest.ErrInvalid, digest, got)
	}
	return b, nil
}
