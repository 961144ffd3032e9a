// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"keelson/api/kind"
	"keelson/lib/quantity"
)

// Document encodes obj as JSON, with its kind and version.
func Document(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	if obj == nil {
		return nil, nil
	}
	b, err := json.Marshal(kind.Named(obj, gvk))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", gvk.Kind, err)
	}
	return b, nil
}

// Parse decodes doc as an object of r.Object's type, with defaults. Unknown fields are dropped.
func (r *Request) Parse(doc []byte) (runtime.Object, error) {
	if r.Object == nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("%s of %s has no object", r.Operation, r.Resource.Resource))
	}
	if r.Spec != nil && r.Spec.Read != nil {
		obj, _, err := r.Spec.Read(doc, false)
		if err != nil {
			return nil, err
		}
		r.Spec.Default(obj)
		return obj, nil
	}
	t := reflect.TypeOf(r.Object)
	fresh, ok := reflect.TypeAssert[runtime.Object](reflect.New(t.Elem()))
	if !ok {
		return nil, fmt.Errorf("a %s is no object", t)
	}
	if err := quantity.CheckJSON(doc, t); err != nil {
		return nil, err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, fresh); err != nil {
		return nil, err
	}
	if obj, ok := fresh.(kind.Object); ok && r.Spec != nil {
		r.Spec.Default(obj)
	}
	return fresh, nil
}

// SetObject replaces the content of r.Object by that of obj, which has the same type and must not be used afterwards.
func (r *Request) SetObject(obj runtime.Object) error {
	into := reflect.ValueOf(r.Object)
	from := reflect.ValueOf(obj)
	if r.Object == nil || obj == nil || into.Type() != from.Type() || into.Kind() != reflect.Pointer {
		return apierrors.NewInternalError(fmt.Errorf("a %T cannot become a %T", r.Object, obj))
	}
	into.Elem().Set(from.Elem())
	return nil
}
