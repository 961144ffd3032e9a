// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	"keelson/api/kind"
)

// codec stores custom resources as JSON in the version that they have. Decoding prunes and defaults them with the
// current schema of that version.
type codec struct{ versions *versions }

func (c codec) Encode(obj kind.Object) ([]byte, error) {
	b, err := json.Marshal(content(obj))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.versions.names.Kind, err)
	}
	return append(b, '\n'), nil
}

func (c codec) Decode(b []byte) (kind.Object, error) {
	obj := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b, &obj.Object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.versions.names.Kind, err)
	}
	v := c.versions.versionOf(obj)
	if v == nil {
		return nil, fmt.Errorf("decode %s: the definition has no %s", c.versions.names.Kind,
			obj.GroupVersionKind())
	}
	if _, err := v.coerce(obj, coerceOptions{stored: true}); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.versions.names.Kind, err)
	}
	v.setDefaults(obj)
	return obj, nil
}
