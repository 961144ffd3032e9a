// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"strconv"
	"sync"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"keelson/lib/yamlalias"
)

// Encoder encodes objects of one kind in one encoding; it implements objects.Encoder.
type Encoder struct {
	media Media
	gvk   schema.GroupVersionKind
	key   string
}

// NewEncoder returns the encoder of gvk in media.
func NewEncoder(media Media, gvk schema.GroupVersionKind) *Encoder {
	return &Encoder{media: media, gvk: gvk, key: media.String() + ";" + gvk.GroupVersion().String()}
}

// Key identifies the encoding in caches.
func (e *Encoder) Key() string { return e.key }

// Encode returns obj encoded as a complete response body.
func (e *Encoder) Encode(obj runtime.Object) ([]byte, error) {
	switch e.media {
	case Proto:
		return encodeProto(obj, e.gvk)
	case YAML:
		return encodeYAML(obj, e.gvk)
	default:
		return encodeJSON(obj, e.gvk)
	}
}

func encodeJSON(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	b, err := marshalJSON(obj, gvk)
	if err != nil {
		return nil, fmt.Errorf("encode %s as json: %w", gvk.Kind, err)
	}
	return append(b, '\n'), nil
}

func encodeYAML(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	b, err := marshalJSON(obj, gvk)
	if err == nil {
		b, err = jsonToYAML(b)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s as yaml: %w", gvk.Kind, err)
	}
	return b, nil
}

// yamlSlots limits concurrent YAML conversions: each needs 40 times the document's size and a whole CPU.
var yamlSlots = make(chan struct{}, max(2, goruntime.GOMAXPROCS(0)))

// acquireYAMLSlot waits for a slot and returns its release.
func acquireYAMLSlot() func() {
	yamlSlots <- struct{}{}
	return func() { <-yamlSlots }
}

func jsonToYAML(b []byte) ([]byte, error) {
	defer acquireYAMLSlot()()
	return yaml.JSONToYAML(b)
}

// CheckYAML returns the syntax error of a YAML or JSON document.
func CheckYAML(b []byte) error {
	defer acquireYAMLSlot()()
	if err := yamlalias.Check(b); err != nil {
		return err
	}
	_, err := utilyaml.ToJSON(b)
	return err
}

// YAMLToJSON converts a document.
func YAMLToJSON(b []byte) ([]byte, error) {
	defer acquireYAMLSlot()()
	if err := yamlalias.Check(b); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(b)
}

// protoMessage is implemented by generated API types.
type protoMessage interface {
	Size() int
	MarshalToSizedBuffer(b []byte) (int, error)
}

// protoPrefix begins every protobuf body; a runtime.Unknown with these tags follows.
var protoPrefix = []byte{'k', '8', 's', 0}

const (
	tagTypeMeta = 0x0a // runtime.Unknown.typeMeta
	tagRaw      = 0x12 // runtime.Unknown.raw
	tagFirst    = 0x0a // TypeMeta.apiVersion, WatchEvent.type, and a list's metadata
	tagSecond   = 0x12 // TypeMeta.kind, WatchEvent.object, and a list's items
)

// unknownTail is the empty contentEncoding and contentType at the end of a runtime.Unknown.
var unknownTail = []byte{0x1a, 0, 0x22, 0}

func encodeProto(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	m, ok := obj.(protoMessage)
	if !ok {
		return nil, notAcceptable()
	}
	if gvk.Empty() {
		gvk = obj.GetObjectKind().GroupVersionKind()
	}
	size := m.Size()
	b := appendEnvelope(nil, gvk, size)
	n := len(b)
	b = b[:n+size]
	if _, err := m.MarshalToSizedBuffer(b[n:]); err != nil {
		return nil, fmt.Errorf("encode %s as protobuf: %w", gvk.Kind, err)
	}
	return append(b, unknownTail...), nil
}

// appendEnvelope appends everything before the size bytes of the raw object, with capacity for them and the tail.
func appendEnvelope(b []byte, gvk schema.GroupVersionKind, size int) []byte {
	version := gvk.GroupVersion().String()
	meta := 2 + uvarintLen(len(version)) + len(version) + uvarintLen(len(gvk.Kind)) + len(gvk.Kind)
	if b == nil {
		b = make([]byte, 0, 4+1+uvarintLen(meta)+meta+1+uvarintLen(size)+size+4)
	}
	b = append(b, protoPrefix...)
	b = binary.AppendUvarint(append(b, tagTypeMeta), uint64(meta))
	b = appendString(b, tagFirst, version)
	b = appendString(b, tagSecond, gvk.Kind)
	return binary.AppendUvarint(append(b, tagRaw), uint64(size))
}

func appendString(b []byte, tag byte, s string) []byte {
	return append(binary.AppendUvarint(append(b, tag), uint64(len(s))), s...)
}

func uvarintLen(n int) int {
	l := 1
	for ; n >= 0x80; n >>= 7 {
		l++
	}
	return l
}

// protoRaw returns the object's bytes in an envelope of encodeProto.
func protoRaw(b []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(b, protoPrefix)
	for ok && len(rest) > 1 {
		tag := rest[0]
		n, l := binary.Uvarint(rest[1:])
		if l <= 0 || n > uint64(len(rest)-1-l) {
			break
		}
		field := rest[1+l : 1+l+int(n)]
		if tag == tagRaw {
			return field, nil
		}
		rest = rest[1+l+int(n):]
	}
	return nil, fmt.Errorf("read protobuf envelope of %d bytes: no object in it", len(b))
}

// Write responds with obj, encoded as want says; gvk may be empty if obj has its kind.
func Write(
	w http.ResponseWriter, r *http.Request, code int, obj runtime.Object, gvk schema.GroupVersionKind,
	want MediaTypeOptions,
) {
	enc := Encoder{media: want.Media, gvk: gvk}
	b, err := enc.Encode(obj)
	if err != nil && want.Media == Proto { // a kind without protobuf: every client accepts JSON
		want.Media = JSON
		enc.media = JSON
		b, err = enc.Encode(obj)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	WriteBytes(w, r, code, b, want)
}

// gzipMinSize is the minimum size of compressed responses.
const gzipMinSize = 128 << 10

var gzips = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is valid, so there is no error
	return z
}}

// WriteBytes responds with an encoded body, indented or compressed as the client requests.
func WriteBytes(w http.ResponseWriter, r *http.Request, code int, b []byte, want MediaTypeOptions) {
	if want.Pretty && want.Media == JSON {
		var buf bytes.Buffer
		// without a newline at the end, as in Kubernetes
		if json.Indent(&buf, bytes.TrimSuffix(b, []byte("\n")), "", "  ") == nil {
			b = buf.Bytes()
		}
	}
	WriteParts(w, r, code, want.Media.String(), len(b), func(yield func([]byte) bool) { yield(b) })
}

// setHeaders sets the headers of every response.
func setHeaders(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-cache, private")
	}
}

// gzipWriter compresses a response.
type gzipWriter struct{ *gzip.Writer }

func newGzip(w http.ResponseWriter) *gzipWriter {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	z, _ := gzips.Get().(*gzip.Writer)
	z.Reset(w)
	return &gzipWriter{z}
}

// finish ends the response. It is not called for an aborted one.
func (z *gzipWriter) finish() {
	_ = z.Close() // the client may be gone
	z.Reset(io.Discard)
	gzips.Put(z.Writer)
}

// WriteParts responds with size bytes that come in parts.
func WriteParts(w http.ResponseWriter, r *http.Request, code int, contentType string, size int, parts func(func(
	[]byte,
) bool),
) {
	setHeaders(w, contentType)
	var out io.Writer = w
	if size >= gzipMinSize && acceptsGzip(r) {
		z := newGzip(w)
		defer z.finish()
		out = z
	} else {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	w.WriteHeader(code)
	if r.Method == http.MethodHead {
		return
	}
	for p := range parts {
		if _, err := out.Write(p); err != nil {
			return
		}
	}
}
