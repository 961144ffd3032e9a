// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"fmt"
	"sync"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"keelson/lib/celenv"
	"keelson/lib/deflate"
)

// version is one version of a definition. Its schema is compiled at first use (invariant 4): most definitions of a
// cluster have no objects, and what is compiled is larger than the schema itself.
type version struct {
	spec     v1.CustomResourceDefinitionVersion // without its schema
	names    v1.CustomResourceDefinitionNames
	gvk      schema.GroupVersionKind
	scoped   bool // objects are namespaced
	preserve bool // spec.preserveUnknownFields: no pruning
	status   bool
	scale    *v1.CustomResourceSubresourceScale
	schema   deflate.Packed // v1.CustomResourceValidation as protobuf; empty: the version has no schema

	columns    []column
	selectable []fieldPath

	structure  func() (*structural.Structural, error) // nil without a schema
	validators func() (*validators, error)
}

// validators holds the validators of a version. Building them takes milliseconds, more with rules (invariant 4).
type validators struct {
	structure      *structural.Structural // nil without a schema
	object, status schemavalidation.SchemaValidator
	rules          *cel.Validator
}

// newVersion is v as it is served. v must not be modified any more.
func newVersion(crd *v1.CustomResourceDefinition, v *v1.CustomResourceDefinitionVersion) (*version, error) {
	out := &version{
		spec:     *v,
		names:    crd.Status.AcceptedNames,
		scoped:   crd.Spec.Scope == v1.NamespaceScoped,
		preserve: crd.Spec.PreserveUnknownFields,
		gvk:      schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Status.AcceptedNames.Kind},
	}
	if v.Subresources != nil {
		out.status = v.Subresources.Status != nil
		out.scale = v.Subresources.Scale
	}
	out.spec.Schema = nil
	if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
		b, err := v.Schema.Marshal()
		if err != nil {
			return nil, fmt.Errorf("keep schema of %s: %w", out.gvk, err)
		}
		out.schema = deflate.Pack(b)
	}
	out.columns = newColumns(v.AdditionalPrinterColumns)
	for _, f := range v.SelectableFields {
		p, err := newFieldPath(f.JSONPath)
		if err != nil {
			return nil, err
		}
		out.selectable = append(out.selectable, p)
	}
	out.structure = sync.OnceValues(out.newStructure)
	out.validators = sync.OnceValues(out.newValidators)
	return out, nil
}

// props is the schema in the form that Kubernetes' libraries compile; nil without a schema. The result belongs to the
// caller.
func (v *version) props() (*internal.JSONSchemaProps, error) {
	if v.schema.Size() == 0 {
		return nil, nil // no schema is no error
	}
	source := &v1.CustomResourceValidation{}
	if err := source.Unmarshal(v.schema.Unpack()); err != nil {
		return nil, fmt.Errorf("read schema of %s: %w", v.gvk, err)
	}
	out := &internal.CustomResourceValidation{}
	err := v1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(source, out, nil)
	if err != nil {
		return nil, fmt.Errorf("read schema of %s: %w", v.gvk, err)
	}
	return out.OpenAPIV3Schema, nil
}

// newStructure compiles the schema for pruning and defaulting.
func (v *version) newStructure() (*structural.Structural, error) {
	props, err := v.props()
	if props == nil {
		return nil, err
	}
	str, err := structural.NewStructural(props)
	if err != nil {
		if v.preserve {
			return nil, nil // schemas of old definitions may support validation only
		}
		return nil, fmt.Errorf("read schema of %s: %w", v.gvk, err)
	}
	if v.preserve {
		return str, nil
	}
	if err := defaulting.PruneDefaults(str); err != nil {
		return nil, fmt.Errorf("prune defaults of %s: %w", v.gvk, err)
	}
	return str, nil
}

func (v *version) newValidators() (*validators, error) {
	props, err := v.props()
	if err != nil {
		return nil, err
	}
	compiled := &validators{}
	if compiled.structure, err = v.structure(); err != nil {
		return nil, err
	}
	if compiled.object, _, err = schemavalidation.NewSchemaValidator(props); err != nil {
		return nil, fmt.Errorf("validator of %s: %w", v.gvk, err)
	}
	if v.status && props != nil {
		if s, ok := props.Properties["status"]; ok {
			if compiled.status, _, err = schemavalidation.NewSchemaValidator(&s); err != nil {
				return nil, fmt.Errorf("validator of the status of %s: %w", v.gvk, err)
			}
		}
	}
	celenv.Bound() // before the validator takes the environment
	compiled.rules = cel.NewValidator(compiled.structure, true, celconfig.PerCallLimit)
	return compiled, nil
}
