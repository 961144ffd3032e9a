// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"keelson/api/kind"
)

// Custom describes a kind without a Go type: its objects are Unstructured, and it may have several versions.
type Custom struct {
	// Types are the merge schemas by apiVersion.
	Types map[string]typed.ParseableType
	// Convert returns u in another version; u stays as it is.
	Convert func(u *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error)
	// Reset are the paths that a subresource never changes, by apiVersion.
	Reset map[string][][]string
}

// NewCustom is New for a kind without a Go type. describe is called once, by the first write.
func NewCustom(k *kind.Kind, sub string, describe func() (*Custom, error)) *Manager {
	return &Manager{
		kind:    k,
		gvk:     k.GVK(),
		version: k.GVK().GroupVersion().String(),
		sub:     sub,
		custom:  describe,
	}
}

func (m *Manager) buildCustom() error {
	custom, err := m.custom()
	if err != nil {
		return fmt.Errorf("merge schema of %s: %w", m.gvk.Kind, err)
	}
	filter := map[fieldpath.APIVersion]fieldpath.Filter{}
	for version, paths := range custom.Reset {
		if len(paths) > 0 {
			filter[fieldpath.APIVersion(version)] = excluding(paths)
		}
	}
	objects := customObjects{m.kind, custom}
	m.fields, err = managedfields.NewDefaultCRDFieldManager(
		customTypes(custom.Types), objects, objects, objects, m.gvk, m.gvk.GroupVersion(), m.sub, filter)
	if err != nil {
		return fmt.Errorf("field manager of %s: %w", m.gvk.Kind, err)
	}
	return nil
}

// dropNullMetadata drops the labels, annotations and so on whose last entry a merge has removed: they are null then,
// and not absent as in an object with a Go type.
func dropNullMetadata(u *unstructured.Unstructured) {
	metadata, _ := u.Object["metadata"].(map[string]any)
	for name, value := range metadata {
		if value == nil {
			delete(metadata, name)
		}
	}
}

func excluding(paths [][]string) fieldpath.Filter {
	set := &fieldpath.Set{}
	for _, path := range paths {
		p := make(fieldpath.Path, len(path))
		for i := range path {
			p[i] = fieldpath.PathElement{FieldName: &path[i]}
		}
		set.Insert(p)
	}
	return fieldpath.NewExcludeSetFilter(set)
}

// customTypes reads objects through the merge schema of their version.
type customTypes map[string]typed.ParseableType

func (c customTypes) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("custom resource is a %T", obj)
	}
	t, ok := c[u.GetAPIVersion()]
	if !ok {
		return nil, runtime.NewNotRegisteredErrForKind("custom resources", u.GroupVersionKind())
	}
	return typed.AsTyped(ordered{value.NewValueInterface(u.Object)}, t.Schema, t.TypeRef, opts...)
}

func (c customTypes) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	return typeConverter{}.TypedToObject(v)
}

// customObjects is what the field manager needs to know about the kind.
type customObjects struct {
	kind   *kind.Kind
	custom *Custom
}

// ConvertToVersion returns obj as it is when it has that version already.
func (o customObjects) ConvertToVersion(obj runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("custom resource is a %T", obj)
	}
	from := u.GroupVersionKind()
	gvk, ok := to.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if _, known := o.custom.Types[gvk.GroupVersion().String()]; !ok || !known {
		return nil, runtime.NewNotRegisteredErrForKind("custom resources", gvk)
	}
	if gvk == from {
		return u, nil
	}
	return o.custom.Convert(u, gvk.GroupVersion())
}

// Convert is not used by the field manager.
func (o customObjects) Convert(_, _, _ any) error {
	return fmt.Errorf("convert %s: not asked for", o.kind.Kind)
}

// ConvertFieldLabel is not used by the field manager.
func (o customObjects) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default fills in defaults after an apply.
func (o customObjects) Default(obj runtime.Object) { objectTypes{o.kind}.Default(obj) }

// New makes an empty object.
func (o customObjects) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	return objectTypes{o.kind}.New(gvk)
}

// MetaName is what a schema refers to for an object's metadata.
const MetaName = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// CustomTypes turns OpenAPI schemas, by apiVersion, into merge schemas. They may refer to MetaName. preserve: fields
// that a schema does not know are kept.
func CustomTypes(models map[string]*spec.Schema, preserve bool) (map[string]typed.ParseableType, error) {
	s, err := schemaconv.ToSchemaFromOpenAPI(models, preserve)
	if err != nil {
		return nil, fmt.Errorf("read schemas: %w", err)
	}
	meta, err := closure(MetaName)
	if err != nil {
		return nil, err
	}
	for _, d := range meta.Types {
		if !slices.ContainsFunc(s.Types, func(have smd.TypeDef) bool { return have.Name == d.Name }) {
			s.Types = append(s.Types, d)
		}
	}
	out := make(map[string]typed.ParseableType, len(models))
	for name := range models {
		out[name] = typed.ParseableType{TypeRef: smd.TypeRef{NamedType: &name}, Schema: s}
	}
	return out, nil
}
