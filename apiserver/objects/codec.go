// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
)

// Codec encodes and decodes stored objects. Encode must not modify obj; Decode returns a new object.
type Codec interface {
	Encode(obj kind.Object) ([]byte, error)
	Decode(b []byte) (kind.Object, error)
}

// magic is the prefix of every protobuf value that Kubernetes stores.
var magic = []byte("k8s\x00")

type protobufCodec struct {
	gvk  schema.GroupVersionKind
	meta runtime.TypeMeta
	make func() kind.Object
	// converters decode the JSON form of other versions.
	converters map[string]func(doc []byte) (kind.Object, error)
}

// Protobuf is Kubernetes' storage format: the magic bytes, then a runtime.Unknown with the object's message. The
// envelope's kind comes from gvk, so objects need no TypeMeta. JSON values and other versions of the kind are decoded
// too; convert, which may be nil, has the versions whose format differs.
func Protobuf(gvk schema.GroupVersionKind, create func() kind.Object, convert map[string]func(
	doc []byte,
) (kind.Object, error),
) Codec {
	v, k := gvk.ToAPIVersionAndKind()
	return protobufCodec{gvk, runtime.TypeMeta{APIVersion: v, Kind: k}, create, convert}
}

func (c protobufCodec) Encode(obj kind.Object) ([]byte, error) {
	m, ok := obj.(runtime.ProtobufMarshaller)
	if !ok {
		return nil, fmt.Errorf("encode %s: %T has no protobuf form", c.gvk.Kind, obj)
	}
	unknown := runtime.Unknown{TypeMeta: c.meta}
	size := m.Size()
	out := make([]byte, len(magic)+unknown.Size()+size+16) // 16: tag and length of the message
	copy(out, magic)
	n, err := unknown.NestedMarshalTo(out[len(magic):], m, uint64(size))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.gvk.Kind, err)
	}
	return out[: len(magic)+n : len(magic)+n], nil
}

func (c protobufCodec) Decode(b []byte) (kind.Object, error) {
	if !bytes.HasPrefix(b, magic) {
		return c.decodeJSON(b)
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(b[len(magic):]); err != nil {
		return nil, fmt.Errorf("decode %s: envelope: %w", c.gvk.Kind, err)
	}
	if unknown.TypeMeta != c.meta {
		return c.otherVersion(schema.FromAPIVersionAndKind(unknown.APIVersion, unknown.Kind), nil, unknown.Raw)
	}
	obj := c.make()
	m, ok := obj.(interface{ Unmarshal([]byte) error })
	if !ok {
		return nil, fmt.Errorf("decode %s: %T has no protobuf form", c.gvk.Kind, obj)
	}
	if err := m.Unmarshal(unknown.Raw); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.gvk.Kind, err)
	}
	return obj, nil
}

func (c protobufCodec) decodeJSON(b []byte) (kind.Object, error) {
	var found runtime.TypeMeta
	if err := json.Unmarshal(b, &found); err != nil {
		if bytes.HasPrefix(b, []byte("k8s:enc:")) {
			return nil, fmt.Errorf("decode %s: it is encrypted, and no configuration of encryption at rest says how "+
				"to read it", c.gvk.Kind)
		}
		return nil, fmt.Errorf("decode %s: neither protobuf nor JSON: %w", c.gvk.Kind, err)
	}
	if found != c.meta {
		return c.otherVersion(found.GroupVersionKind(), b, nil)
	}
	obj := c.make()
	if err := json.Unmarshal(b, obj); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.gvk.Kind, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj, nil
}
