// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/lib/quantity"
)

// A protobuf body is read twice. The first time nothing is made of it: its messages are counted, and its lengths are
// checked. The generated decoders of Kubernetes check the lengths in an entry of a map against the end of the whole
// message, so that each entry of six bytes could make a string of all bytes that follow it.

// protoHead begins a protobuf body. A runtime.Unknown follows.
var protoHead = []byte("k8s\x00")

// The fields of runtime.Unknown, and of a map's entry.
const (
	unknownType = 1
	unknownRaw  = 2
	entryKey    = 1
	entryValue  = 2
)

// quantityText is the only field of a quantity.
const quantityText = 1

var errProto = errors.New("malformed protobuf message")

// shape says which fields of a message are read further: messages, lists of them, and maps.
type shape struct {
	fields []*shape // by field number; nil for other fields
	entry  bool     // of an entry of a map

	quantity bool // its field 1 is the text of a quantity
}

// field is the shape of the field's messages; nil if it has none.
func (s *shape) field(n protowire.Number) *shape {
	if int(n) >= len(s.fields) {
		return nil
	}
	return s.fields[n]
}

// shapes are the shapes of Go types, whose tags have the field numbers.
type shapes struct {
	mu     sync.Mutex
	byType map[reflect.Type]*shape
}

var protoShapes = shapes{byType: map[reflect.Type]*shape{}}

// of is the shape of messages of type t.
func (s *shapes) of(t reflect.Type) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofLocked(t)
}

func (s *shapes) ofLocked(t reflect.Type) *shape {
	if known := s.byType[t]; known != nil {
		return known
	}
	sh := &shape{quantity: t == quantity.Type}
	s.byType[t] = sh // before its fields, which may be of the same type
	if t.Kind() != reflect.Struct {
		return sh // a list with a message of its own: ExtraValue
	}
	for field := range t.Fields() {
		of := s.ofFieldLocked(field.Type)
		number := fieldNumber(field.Tag)
		if of == nil || number == 0 {
			continue
		}
		if more := number + 1 - len(sh.fields); more > 0 {
			sh.fields = append(sh.fields, make([]*shape, more)...)
		}
		sh.fields[number] = of
	}
	return sh
}

// fieldNumber is the number in a tag like `protobuf:"bytes,2,opt,name=spec"`; 0 if there is none.
func fieldNumber(tag reflect.StructTag) int {
	_, rest, _ := strings.Cut(tag.Get("protobuf"), ",")
	text, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// ofFieldLocked is the shape of a field of type t; nil if it is not read further. Keys and values of maps are strings,
// bytes or messages.
func (s *shapes) ofFieldLocked(t reflect.Type) *shape {
	switch {
	case isMessage(t):
		return s.ofLocked(t)
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice:
		return s.ofFieldLocked(t.Elem())
	case t.Kind() == reflect.Map:
		return &shape{fields: []*shape{entryValue: s.ofFieldLocked(t.Elem())}, entry: true}
	}
	return nil
}

var unmarshaler = reflect.TypeFor[interface {
	Unmarshal(data []byte) error
}]()

// isMessage reports whether values of type t have a message of their own.
func isMessage(t reflect.Type) bool {
	return t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(unmarshaler)
}

// checkProto rejects a protobuf body of kind gvk with too deep nesting or too many messages, like CheckDepth, with
// wrong lengths, or with a quantity that takes too long to compute with. Other errors are the decoder's.
func checkProto(body []byte, gvk schema.GroupVersionKind, into runtime.Object) error {
	if len(body) <= 2*maxDepth && !quantity.MayExceed(body) { // a message takes two bytes
		return nil
	}
	_, err := scanProto(body, gvk, into)
	if errors.Is(err, errProto) || errors.Is(err, resource.ErrFormatWrong) {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the object provided is unrecognized (must be of type %s): %v (%s)", gvk.Kind, err, summary(body)))
	}
	return err
}

// scanProto counts the messages of a body.
func scanProto(body []byte, gvk schema.GroupVersionKind, into runtime.Object) (parts int, err error) {
	rest, ok := bytes.CutPrefix(body, protoHead)
	if !ok {
		return 0, nil
	}
	var named runtime.TypeMeta
	var raws [][]byte
	for len(rest) > 0 {
		number, value, next, err := protoField(rest)
		switch {
		case err != nil:
			return 0, err
		case number == unknownRaw:
			raws = append(raws, value)
		case number == unknownType && named.Unmarshal(value) != nil:
			return 0, errProto
		}
		rest = next
	}
	t := decodedType(named, gvk, into)
	if t == nil {
		return 0, nil
	}
	scan := protoScan{}
	sh := protoShapes.of(t)
	for _, raw := range raws {
		if err := scan.message(raw, sh, 1); err != nil {
			return scan.parts, err
		}
	}
	return scan.parts, nil
}

// decodedType is the type that the decoder makes: into's, unless the body names another kind; nil if it makes none.
func decodedType(named runtime.TypeMeta, gvk schema.GroupVersionKind, into runtime.Object) reflect.Type {
	actual := schema.FromAPIVersionAndKind(named.APIVersion, named.Kind)
	if actual.Kind == "" {
		actual.Kind = gvk.Kind
	}
	if actual.Version == "" {
		actual.Group = gvk.Group
		actual.Version = gvk.Version
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(into)
	if err == nil && !slices.Contains(kinds, actual) {
		other, err := scheme.Scheme.New(actual)
		if err != nil {
			return nil
		}
		into = other
	}
	return reflect.TypeOf(into).Elem()
}

// protoField reads one field: its number, its bytes if it is length-delimited, and what follows it.
func protoField(b []byte) (number protowire.Number, value, rest []byte, err error) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, nil, nil, errProto
	}
	b = b[n:]
	if kind != protowire.BytesType {
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return 0, nil, nil, errProto
		}
		return number, nil, b[n:], nil
	}
	value, n = protowire.ConsumeBytes(b)
	if n < 0 {
		return 0, nil, nil, errProto
	}
	return number, value, b[n:], nil
}

// protoScan counts messages.
type protoScan struct{ parts int }

// message reads a message of shape sh.
func (s *protoScan) message(b []byte, sh *shape, depth int) error {
	if depth > maxDepth {
		return errTooDeep()
	}
	if !sh.entry || sh.field(entryValue) != nil {
		s.parts++
	}
	if s.parts > maxParts {
		return errTooManyParts()
	}
	for len(b) > 0 {
		number, value, rest, err := protoField(b)
		if err != nil {
			return err
		}
		if sh.entry && value == nil && (number == entryKey || number == entryValue) {
			return errProto // decoders take any type for length-delimited here
		}
		if sh.quantity && number == quantityText {
			if err := quantity.Check(string(value)); err != nil {
				return err
			}
		}
		if of := sh.field(number); of != nil && value != nil {
			if err := s.message(value, of, depth+1); err != nil {
				return err
			}
		}
		b = rest
	}
	return nil
}
