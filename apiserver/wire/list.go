// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/lib/cpusem"
)

// List is a response written item by item: it needs only the memory of one item and a buffer.
type List struct {
	// Envelope is the list without items as JSON on one line. Its last member is the empty array Field.
	Envelope []byte
	Field    string
	// Kind and Meta replace the envelope in protobuf.
	Kind schema.GroupVersionKind
	Meta metav1.ListMeta
	// Len is the number of items. AppendJSON appends item i in list form.
	Len        int
	AppendJSON func(b []byte, i int) ([]byte, error)
	// Size is the protobuf size of item i, and Proto returns the item; they must agree. Proto is nil for lists without
	// a protobuf form.
	Size  func(i int) (int, error)
	Proto func(i int) ([]byte, error)
}

// Envelope is the JSON of a list without items.
func Envelope(list schema.GroupVersionKind, meta metav1.ListMeta) ([]byte, error) {
	m, err := json.Marshal(meta)
	if err != nil {
		return nil, fmt.Errorf("encode list metadata: %w", err)
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[]}`, list.Kind,
		list.GroupVersion().String(), m), nil
}

// AppendItem appends an object, encoded as a single JSON response, as a list item.
func AppendItem(b, object []byte) []byte { return append(append(b, '{'), withoutKind(object)...) }

// JSON is the whole list as JSON.
func (l *List) JSON() ([]byte, error) {
	b := slices.Clone(bytes.TrimSuffix(l.Envelope, []byte("]}")))
	for i := range l.Len {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = l.AppendJSON(b, i); err != nil {
			return nil, err
		}
	}
	return append(b, "]}\n"...), nil
}

// WriteList responds with list in the encoding want. It ends when ctx does or the client disconnects. An error means
// that nothing has been sent; a later failure aborts the response, so that the client does not take it for complete.
func WriteList(ctx context.Context, w http.ResponseWriter, r *http.Request, list *List, want MediaTypeOptions) error {
	s := listStream{
		ctx:  ctx.Err,
		w:    w,
		r:    r,
		want: want,
		size: -1,
	}
	s.buf, _ = listBuffers.Get().(*[]byte)
	defer func() {
		if cap(*s.buf) <= 4*gzipMinSize {
			*s.buf = (*s.buf)[:0]
			listBuffers.Put(s.buf)
		}
	}()
	var err error
	cpusem.Processors.Do(func() { err = s.write(list) })
	if err == nil {
		err = s.end()
	}
	if err != nil && s.out != nil {
		panic(http.ErrAbortHandler)
	}
	return err
}

var listBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, gzipMinSize+gzipMinSize/4)
	return &b
}}

// flushSize is the number of list bytes per write.
const flushSize = 64 << 10

// listStream writes one list. A list below gzipMinSize is sent with its length, a larger one streamed.
type listStream struct {
	ctx  func() error
	w    http.ResponseWriter
	r    *http.Request
	want MediaTypeOptions
	size int // total size; -1: unknown
	buf  *[]byte
	out  io.Writer    // nil: the header has not been sent
	gzip *gzipWriter  // nil: not compressed
	text bytes.Buffer // buffer for converting items
}

func (s *listStream) write(list *List) error {
	switch {
	case s.want.Media == Proto:
		return s.proto(list)
	case s.want.Media == YAML:
		return s.yaml(list)
	case s.want.Pretty:
		return s.pretty(list)
	}
	*s.buf = append(*s.buf, bytes.TrimSuffix(list.Envelope, []byte("]}"))...)
	err := s.each(list.Len, func(b []byte, i int) ([]byte, error) {
		if i > 0 {
			b = append(b, ',')
		}
		return list.AppendJSON(b, i)
	})
	*s.buf = append(*s.buf, "]}\n"...)
	return err
}

// each appends n items and flushes.
func (s *listStream) each(n int, add func(b []byte, i int) ([]byte, error)) error {
	for i := range n {
		if err := s.ctx(); err != nil {
			return fmt.Errorf("write list: %w", err)
		}
		b, err := add(*s.buf, i)
		if err != nil {
			return err
		}
		*s.buf = b
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

// pretty writes indented JSON without a trailing newline.
func (s *listStream) pretty(list *List) error {
	if err := json.Indent(&s.text, list.Envelope, "", "  "); err != nil {
		return fmt.Errorf("indent list: %w", err)
	}
	const end = "]\n}"
	*s.buf = append(*s.buf, bytes.TrimSuffix(s.text.Bytes(), []byte(end))...)
	var item []byte
	err := s.each(list.Len, func(b []byte, i int) (_ []byte, err error) {
		if item, err = list.AppendJSON(item[:0], i); err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, "\n    "...)
		s.text.Reset()
		if err := json.Indent(&s.text, item, "    ", "  "); err != nil {
			return nil, fmt.Errorf("indent item of list: %w", err)
		}
		return append(b, s.text.Bytes()...), nil
	})
	if list.Len > 0 {
		*s.buf = append(*s.buf, "\n  "...)
	}
	*s.buf = append(*s.buf, end...)
	return err
}

// yaml writes YAML, with members sorted by name.
func (s *listStream) yaml(list *List) error {
	whole, err := convertYAML(list.Envelope)
	if err != nil {
		return fmt.Errorf("encode list as yaml: %w", err)
	}
	empty := list.Field + ": []\n"
	if list.Len == 0 {
		*s.buf = append(*s.buf, whole...)
		return nil
	}
	at := bytes.LastIndex(whole, []byte("\n"+empty)) + 1
	if at == 0 {
		return fmt.Errorf("encode list as yaml: no %s in it", list.Field)
	}
	head := list.Field + ":\n"
	*s.buf = append(append(*s.buf, whole[:at]...), head...)
	before := []byte(`{"` + list.Field + `":[`)
	var item []byte
	err = s.each(list.Len, func(b []byte, i int) ([]byte, error) {
		var err error
		if item, err = list.AppendJSON(append(item[:0], before...), i); err != nil {
			return nil, err
		}
		item = append(item, "]}"...) // as part of a list, because line folding depends on the column
		text, err := convertYAML(item)
		if err != nil {
			return nil, fmt.Errorf("encode item of list as yaml: %w", err)
		}
		return append(b, bytes.TrimPrefix(text, []byte(head))...), nil
	})
	*s.buf = append(*s.buf, whole[at+len(empty):]...)
	return err
}

// convertYAML is jsonToYAML for a goroutine that holds a processor turn, which it releases while it waits for a YAML
// slot.
func convertYAML(b []byte) (out []byte, err error) {
	cpusem.Processors.Away(func() { out, err = jsonToYAML(b) })
	return out, err
}

// proto writes protobuf, where lengths precede messages.
func (s *listStream) proto(list *List) error {
	sizes := make([]int32, list.Len)
	size := 1 + uvarintLen(list.Meta.Size()) + list.Meta.Size()
	for i := range sizes {
		cpusem.Processors.Yield()
		if err := s.ctx(); err != nil {
			return fmt.Errorf("write list: %w", err)
		}
		n, err := list.Size(i)
		if err != nil {
			return err
		}
		sizes[i] = int32(n) // objects are limited to a few MB
		size += 1 + uvarintLen(n) + n
	}
	*s.buf = appendEnvelope(*s.buf, list.Kind, size)
	s.size = len(*s.buf) + size + len(unknownTail)
	m, err := list.Meta.Marshal()
	if err != nil {
		return fmt.Errorf("encode list metadata: %w", err)
	}
	*s.buf = append(binary.AppendUvarint(append(*s.buf, tagFirst), uint64(len(m))), m...)
	err = s.each(list.Len, func(b []byte, i int) ([]byte, error) {
		raw, err := list.Proto(i)
		if err != nil {
			return nil, err
		}
		if len(raw) != int(sizes[i]) {
			return nil, fmt.Errorf("item %d of the list takes %d bytes, and said %d", i, len(raw), sizes[i])
		}
		return append(binary.AppendUvarint(append(b, tagSecond), uint64(len(raw))), raw...), nil
	})
	*s.buf = append(*s.buf, unknownTail...)
	return err
}

// flush writes the buffer when it is large enough. Below gzipMinSize, the response may still fit in one piece.
func (s *listStream) flush() error {
	if s.out == nil && len(*s.buf) >= gzipMinSize {
		s.begin()
	}
	if s.out == nil || len(*s.buf) < flushSize {
		cpusem.Processors.Yield()
		return nil
	}
	var err error
	cpusem.Processors.Away(func() { err = s.empty() }) // the client may be slow
	return err
}

func (s *listStream) empty() error {
	if s.r.Method != http.MethodHead {
		if _, err := s.out.Write(*s.buf); err != nil {
			return fmt.Errorf("write list: %w", err)
		}
	}
	*s.buf = (*s.buf)[:0]
	return nil
}

// begin sends the header of a large response.
func (s *listStream) begin() {
	setHeaders(s.w, s.want.Media.String())
	h := s.w.Header()
	s.out = s.w
	if acceptsGzip(s.r) {
		s.gzip = newGzip(s.w)
		s.out = s.gzip
	} else if s.size >= 0 {
		h.Set("Content-Length", strconv.Itoa(s.size))
	}
	s.w.WriteHeader(http.StatusOK)
}

// end writes the rest.
func (s *listStream) end() error {
	if s.out == nil {
		if len(*s.buf) < gzipMinSize {
			s.size = len(*s.buf)
			setHeaders(s.w, s.want.Media.String())
			s.w.Header().Set("Content-Length", strconv.Itoa(s.size))
			s.w.WriteHeader(http.StatusOK)
			s.out = s.w
		} else {
			s.begin()
		}
	}
	err := s.empty()
	if s.gzip != nil && err == nil {
		s.gzip.finish()
	}
	return err
}

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// withoutKind cuts `{"kind":"Pod","apiVersion":"v1",` and the final newline off an encoded object, which list items do
// not have.
func withoutKind(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte("\n"))
	rest, ok := bytes.CutPrefix(b, []byte(`{"kind":"`))
	if ok {
		_, rest, ok = bytes.Cut(rest, []byte(`","apiVersion":"`))
	}
	if ok {
		_, rest, ok = bytes.Cut(rest, []byte(`"`))
	}
	if !ok {
		return bytes.TrimPrefix(b, []byte("{"))
	}
	return bytes.TrimPrefix(rest, []byte(","))
}

// ProtoSize is the size of obj in a protobuf list.
func ProtoSize(obj runtime.Object) (int, error) {
	m, ok := obj.(protoMessage)
	if !ok {
		return 0, notAcceptable()
	}
	return m.Size(), nil
}

// ProtoRaw is the object's bytes in a single protobuf response.
func ProtoRaw(answer []byte) ([]byte, error) { return protoRaw(answer) }
