// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"keelson/api/kind"
	"keelson/api/scheme"
)

// otherVersion decodes a value stored in another version of the kind, written by another server or an earlier release:
// doc is its JSON, or message its protobuf. Without a converter both versions must have the same format.
func (c protobufCodec) otherVersion(found schema.GroupVersionKind, doc, message []byte) (kind.Object, error) {
	refuse := func(err error) (kind.Object, error) {
		return nil, fmt.Errorf("decode %s: found %s %s, want %s: %w", c.gvk.Kind, found.GroupVersion(), found.Kind,
			c.meta.APIVersion, err)
	}
	if found.Group != c.gvk.Group || found.Kind != c.gvk.Kind {
		return refuse(errors.New("another kind"))
	}
	convert := c.converters[found.Version]
	if convert != nil && doc != nil {
		return convert(doc)
	}
	old, err := scheme.Scheme.New(found)
	if err != nil {
		return refuse(errors.New("no version that is known"))
	}
	if doc == nil {
		m, ok := old.(interface{ Unmarshal([]byte) error })
		if !ok {
			return refuse(errors.New("no protobuf form is known"))
		}
		if err := m.Unmarshal(message); err != nil {
			return refuse(err)
		}
	} else if err := json.Unmarshal(doc, old); err != nil {
		return refuse(err)
	}
	old.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if doc, err = json.Marshal(old); err != nil {
		return refuse(err)
	}
	if convert != nil {
		return convert(doc)
	}
	obj := c.make()
	strict, err := kjson.UnmarshalStrict(doc, obj)
	if err = errors.Join(append(strict, err)...); err != nil {
		return refuse(err)
	}
	return obj, nil
}
