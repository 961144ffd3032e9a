// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"maps"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
)

// kind is the version as a kind.Kind for the handlers.
func (v *version) kind() *kind.Kind {
	spec := &kind.Kind{
		Names: kind.Names{
			Group:      v.gvk.Group,
			Version:    v.gvk.Version,
			Kind:       v.gvk.Kind,
			Resource:   v.names.Plural,
			Singular:   v.names.Singular,
			ShortNames: v.names.ShortNames,
			Categories: v.names.Categories,
			Namespaced: v.scoped,
		},
		New:            func() kind.Object { return v.empty() },
		NewList:        func() runtime.Object { return &unstructured.UnstructuredList{Object: map[string]any{}} },
		Read:           v.read,
		Default:        v.setDefaults,
		PrepareCreate:  v.prepareCreate,
		PrepareUpdate:  v.prepareUpdate,
		Validate:       v.validate,
		ValidateUpdate: v.validateUpdate,
		Rules:          v.validateRules,
		ValidateName:   validation.NameIsDNSSubdomain,
		Warnings:       warnings,
		EarlyWarnings:  func(kind.Object) []string { return nil },
		Fields:         v.fields,
		Row:            v.row,
		Columns:        []metav1.TableColumnDefinition{nameHeader},
		Subs:           map[string]*kind.ErasedSub{},
		Grace:          func(kind.Object, *metav1.DeleteOptions) int64 { return 0 },
	}
	for _, c := range v.columns {
		spec.Columns = append(spec.Columns, c.header)
	}
	if v.status {
		spec.Subs["status"] = &kind.ErasedSub{PrepareUpdate: prepareStatus, ValidateUpdate: v.validateStatus}
	}
	if v.scale != nil {
		spec.Scale = &kind.ErasedScale{
			Get:   v.getScale,
			Set:   v.setScale,
			Check: v.checkScale,
			Path:  splitPath(v.scale.SpecReplicasPath),
		}
	}
	return spec
}

func (v *version) empty() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(v.gvk)
	return u
}

// content is the map of obj; objects of this package are always Unstructured.
func content(obj kind.Object) map[string]any {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return u.Object
	}
	return nil
}

func (v *version) prepareCreate(obj kind.Object) {
	if v.status {
		delete(content(obj), "status")
	}
	obj.SetGeneration(1)
}

// prepareUpdate keeps the status if it is a subresource. A change outside of metadata increments the generation.
func (v *version) prepareUpdate(obj, old kind.Object) {
	now := content(obj)
	before := content(old)
	if v.status {
		if s, ok := before["status"]; ok {
			now["status"] = runtime.DeepCopyJSONValue(s)
		} else {
			delete(now, "status")
		}
	}
	if !apiequality.Semantic.DeepEqual(withoutMeta(now), withoutMeta(before)) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}

func withoutMeta(content map[string]any) map[string]any {
	out := maps.Clone(content)
	delete(out, "metadata")
	return out
}

// prepareStatus keeps everything except the status and its managed fields.
func prepareStatus(obj, old kind.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	before, ok2 := old.DeepCopyObject().(*unstructured.Unstructured)
	if !ok || !ok2 {
		return
	}
	status, has := u.Object["status"]
	owners := u.GetManagedFields()
	u.Object = before.Object
	u.SetManagedFields(owners)
	if has {
		u.Object["status"] = status
	} else {
		delete(u.Object, "status")
	}
}

// fields are the selectable fields. An empty object has all their names.
func (v *version) fields(obj kind.Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName()}
	if v.scoped {
		set["metadata.namespace"] = obj.GetNamespace()
	}
	for _, f := range v.selectable {
		set[f.name] = f.selectorValue(content(obj))
	}
	return set
}

func (v *version) row(obj kind.Object) []any {
	cells := make([]any, 1, 1+len(v.columns))
	cells[0] = obj.GetName()
	for _, c := range v.columns {
		cells = append(cells, c.cell(content(obj)))
	}
	return cells
}

// splitPath splits the path of a replica count.
func splitPath(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

func (v *version) getScale(obj kind.Object) (spec, status int32, selector string) {
	c := content(obj)
	number := func(path string) int32 {
		n, _, err := unstructured.NestedInt64(c, splitPath(path)...)
		if err != nil {
			return 0 // validation rejects such objects
		}
		return int32(n) // validated range
	}
	if p := v.scale.LabelSelectorPath; p != nil {
		selector, _, _ = unstructured.NestedString(c, splitPath(*p)...) // a value that is no string selects nothing
	}
	return number(v.scale.SpecReplicasPath), number(v.scale.StatusReplicasPath), selector
}

func (v *version) setScale(obj kind.Object, replicas int32) {
	// validation reports an obstacle
	_ = unstructured.SetNestedField(content(obj), int64(replicas), splitPath(v.scale.SpecReplicasPath)...)
}

func (v *version) checkScale(obj kind.Object) error {
	_, found, err := unstructured.NestedInt64(content(obj), splitPath(v.scale.SpecReplicasPath)...)
	switch {
	case err != nil:
		return err
	case !found:
		return errNoReplicasField(v.scale.SpecReplicasPath)
	}
	return nil
}

func (v *version) internalError(err error) field.ErrorList {
	return field.ErrorList{field.InternalError(nil, err)}
}
