// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"keelson/api/kind"
)

// read decodes a client's JSON: metadata is converted to its type and unknown fields are pruned. With check, strict
// lists the pruned fields and duplicate keys.
func (v *version) read(doc []byte, check bool) (obj kind.Object, strict []error, err error) {
	content := map[string]any{}
	if check {
		strict, err = kjson.UnmarshalStrict(doc, &content)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(doc, &content)
	}
	if err != nil {
		return nil, nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	if u.GetKind() == "" {
		return nil, nil, runtime.NewMissingKindErr(string(doc))
	}
	if u.GetAPIVersion() == "" {
		return nil, nil, runtime.NewMissingVersionErr(string(doc))
	}
	unknown, err := v.coerce(u, coerceOptions{check: check})
	if err != nil {
		return nil, nil, err
	}
	for _, path := range unknown {
		strict = append(strict, fmt.Errorf("unknown field %q", path))
	}
	return u, strict, nil
}

// coerceOptions are the options of coerce.
type coerceOptions struct {
	check bool // return the names of pruned fields
	// stored: the object comes from the store, where nothing may be rejected.
	stored bool
}

// coerce does for an object what decoding into a Go type does for others: it converts metadata and removes unknown
// fields and forbidden nulls. Of objects in another version only metadata is converted.
func (v *version) coerce(obj *unstructured.Unstructured, opts coerceOptions) (unknown []string, err error) {
	apiVersion := obj.Object["apiVersion"]
	kindName := obj.Object["kind"]
	meta, found, unknown, err := objectmeta.GetObjectMetaWithOptions(obj.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields:     opts.stored,
		ReturnUnknownFieldPaths: opts.check,
	})
	if err != nil {
		return nil, err
	}
	if obj.GroupVersionKind() == v.gvk {
		dropped, err := v.prune(obj.Object, opts)
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, dropped...)
		if opts.stored && meta != nil && meta.Generation == 0 {
			meta.Generation = 1
		}
	}
	obj.Object["apiVersion"] = apiVersion
	obj.Object["kind"] = kindName
	if found {
		if err := objectmeta.SetObjectMeta(obj.Object, meta); err != nil {
			return nil, err
		}
	}
	return unknown, nil
}

// prune removes the fields that the schema does not have.
func (v *version) prune(content map[string]any, opts coerceOptions) (dropped []string, err error) {
	structure, err := v.structure()
	if err != nil {
		return nil, err
	}
	if !v.preserve {
		dropped = pruning.PruneWithOptions(content, structure, true, schema.UnknownFieldPathOptions{
			TrackUnknownFieldPaths: opts.check,
		})
		defaulting.PruneNonNullableNullsWithoutDefaults(content, structure)
	}
	ferr, more := objectmeta.CoerceWithOptions(nil, content, structure, false, objectmeta.CoerceOptions{
		DropInvalidFields:       opts.stored,
		ReturnUnknownFieldPaths: opts.check,
	})
	if ferr != nil {
		return nil, ferr
	}
	return append(dropped, more...), nil
}

// setDefaults sets the schema's defaults.
func (v *version) setDefaults(obj kind.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u.GroupVersionKind() != v.gvk {
		return
	}
	if structure, err := v.structure(); err == nil { // prune has reported an error
		defaulting.Default(u.Object, structure)
	}
}
