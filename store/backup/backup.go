// SPDX-License-Identifier: Apache-2.0

// Package backup is the file format in which a cluster's state is kept outside
// of its store, and the walk over a store that fills it. cluster calls it for
// `keelson backup`, `restore` and `migrate`. It works on the contract alone, so
// that any store's backup fits any other; it never changes a store.
//
// A backup is a magic line with the format version, records, and a SHA-256 sum
// of all that is before it:
//
//	"KEELSON BACKUP 2\n"
//	'F' name content                          a private file of the data directory (keys and certificates)
//	'K' key revision created version value    a key at the backup's revision
//	'E' revision count                        the end; the sum follows
//
// Format 1, which is still read, lacks created and version. Texts are preceded by their length; numbers and lengths are
// unsigned varints.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"keelson/store"
)

const (
	magic   = "KEELSON BACKUP "
	version = "2\n"
	older   = "1\n"
)

// The greatest lengths that are trusted; anything longer is damage.
const (
	maxName  = 64 << 10
	maxValue = 256 << 20
)

// Summary is what a complete backup holds.
type Summary struct {
	Revision int64 // the store's revision
	Keys     int64
}

// Writer writes a backup. The first error sticks: Close returns it.
type Writer struct {
	w    *bufio.Writer
	sum  hash.Hash
	out  io.Writer
	keys int64
	err  error
}

// NewWriter begins a backup on w.
func NewWriter(w io.Writer) *Writer {
	b := &Writer{sum: sha256.New(), out: w}
	b.w = bufio.NewWriterSize(io.MultiWriter(w, b.sum), 64<<10)
	b.put([]byte(magic + version))
	return b
}

func (w *Writer) put(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
}

func (w *Writer) text(b []byte) {
	w.put(binary.AppendUvarint(nil, uint64(len(b))))
	w.put(b)
}

// File adds a file by its path below the data directory.
func (w *Writer) File(name string, content []byte) error {
	w.put([]byte{'F'})
	w.text([]byte(name))
	w.text(content)
	return w.err
}

// KV adds a key.
func (w *Writer) KV(kv store.KV) error {
	w.keys++
	w.put([]byte{'K'})
	w.text([]byte(kv.Key))
	for _, n := range []int64{kv.Revision, kv.Created, kv.Version} {
		w.put(binary.AppendUvarint(nil, uint64(n)))
	}
	w.text(kv.Value)
	return w.err
}

// Close completes the backup of a store at revision. A backup without its end is refused by Read.
func (w *Writer) Close(revision int64) (Summary, error) {
	w.put([]byte{'E'})
	w.put(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(revision)), uint64(w.keys)))
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err == nil {
		_, w.err = w.out.Write(w.sum.Sum(nil))
	}
	return Summary{revision, w.keys}, w.err
}

// Sink takes what Read finds. Nothing of it may be trusted before Read has returned without an error.
type Sink struct {
	File func(name string, content []byte) error
	KV   func(store.KV) error
}

// DamagedError says where a backup does not hold together.
type DamagedError struct {
	Offset int64
	Why    string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the file is damaged or not complete, at byte %d: %s", e.Offset, e.Why)
}

// reader counts and sums what is read.
type reader struct {
	r     *bufio.Reader
	sum   hash.Hash
	at    int64
	older bool // the file has format 1
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.sum.Write(b[:n])
	r.at += int64(n)
	return n, err
}

func (r *reader) ReadByte() (byte, error) {
	b, err := r.r.ReadByte()
	if err == nil {
		r.sum.Write([]byte{b})
		r.at++
	}
	return b, err
}

func (r *reader) damaged(why string) error { return &DamagedError{r.at, why} }

// broken turns an error of reading into the answer: an early end is damage.
func (r *reader) broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.damaged("it ends here")
	}
	return err
}

func (r *reader) number() (int64, error) {
	n, err := binary.ReadUvarint(r)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, r.broken(err)
	case err != nil, n > 1<<62:
		return 0, r.damaged("not a number")
	}
	return int64(n), nil
}

func (r *reader) text(limit int64) ([]byte, error) {
	n, err := r.number()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, r.damaged(fmt.Sprintf("a length of %d", n))
	}
	var b bytes.Buffer // grows with what is there, not with what a damaged length claims
	if _, err := io.CopyN(&b, r, n); err != nil {
		return nil, r.broken(err)
	}
	return b.Bytes(), nil
}

// Read checks a backup from its first to its last byte and hands everything to sink on the way.
func Read(from io.Reader, sink Sink) (Summary, error) {
	r := &reader{r: bufio.NewReaderSize(from, 64<<10), sum: sha256.New()}
	head := make([]byte, len(magic+version))
	if _, err := io.ReadFull(r, head); err != nil || !strings.HasPrefix(string(head), magic) {
		return Summary{}, errors.New("this is not a backup of keelson")
	}
	v := string(head[len(magic):])
	if v != version && v != older {
		return Summary{}, fmt.Errorf("its format is version %q, this program knows version %q", v, version)
	}
	r.older = v == older
	var summary Summary
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return Summary{}, r.broken(err)
		}
		switch kind {
		case 'F':
			err = r.file(sink)
		case 'K':
			summary.Keys++
			err = r.kv(sink)
		case 'E':
			return summary, r.end(&summary)
		default:
			err = r.damaged(fmt.Sprintf("a record of kind %q", kind))
		}
		if err != nil {
			return Summary{}, err
		}
	}
}

func (r *reader) file(sink Sink) error {
	name, err := r.text(maxName)
	if err != nil {
		return err
	}
	content, err := r.text(maxValue)
	if err != nil || sink.File == nil {
		return err
	}
	return sink.File(string(name), content)
}

func (r *reader) kv(sink Sink) error {
	key, err := r.text(maxName)
	if err != nil {
		return err
	}
	kv := store.KV{Key: string(key)}
	numbers := []*int64{&kv.Revision, &kv.Created, &kv.Version}
	if r.older {
		numbers = numbers[:1]
	}
	for _, n := range numbers {
		if *n, err = r.number(); err != nil {
			return err
		}
	}
	kv.Value, err = r.text(maxValue)
	if err != nil || sink.KV == nil {
		return err
	}
	return sink.KV(kv)
}

func (r *reader) end(summary *Summary) error {
	rev, err := r.number()
	if err != nil {
		return err
	}
	keys, err := r.number()
	if err != nil {
		return err
	}
	if keys != summary.Keys {
		return r.damaged(fmt.Sprintf("it should hold %d keys, %d are there", keys, summary.Keys))
	}
	summary.Revision = rev
	want := r.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil {
		return r.broken(err)
	}
	if !bytes.Equal(got, want) {
		return r.damaged("the checksum is not the one of the content")
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		return r.damaged("something follows the end")
	}
	return nil
}

// page is how many keys Walk reads at once.
const page = 2000

// Walk hands every key under prefix, as of one revision, to f and returns that revision.
func Walk(ctx context.Context, s store.Reader, prefix string, f func(store.KV) error) (int64, error) {
	rng := store.Range{Prefix: prefix, Limit: page, NoCount: true}
	for {
		p, err := s.List(ctx, rng)
		if err != nil {
			return 0, fmt.Errorf("read all keys: %w", err)
		}
		for _, kv := range p.Items {
			if err := f(kv); err != nil {
				return 0, err
			}
		}
		rng.Revision = p.Revision
		if !p.More {
			return p.Revision, nil
		}
		rng.From = p.Items[len(p.Items)-1].Key + "\x00"
	}
}
