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
)

// version is one version of a definition with its compiled schema.
type version struct {
	spec     *v1.CustomResourceDefinitionVersion
	names    v1.CustomResourceDefinitionNames
	gvk      schema.GroupVersionKind
	scoped   bool // objects are namespaced
	preserve bool // spec.preserveUnknownFields: no pruning
	status   bool
	scale    *v1.CustomResourceSubresourceScale
	// structure and props are nil for a version without a schema.
	structure *structural.Structural
	props     *internal.JSONSchemaProps

	columns    []column
	selectable []fieldPath

	validators func() (*validators, error)
}

// validators holds the validators of a version. Building them takes milliseconds, more with rules (invariant 4).
type validators struct {
	object, status schemavalidation.SchemaValidator
	rules          *cel.Validator
}

// newVersion compiles v, which must not be modified any more.
func newVersion(crd *v1.CustomResourceDefinition, v *v1.CustomResourceDefinitionVersion) (*version, error) {
	out := &version{
		spec:     v,
		names:    crd.Status.AcceptedNames,
		scoped:   crd.Spec.Scope == v1.NamespaceScoped,
		preserve: crd.Spec.PreserveUnknownFields,
		gvk:      schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Status.AcceptedNames.Kind},
	}
	if v.Subresources != nil {
		out.status = v.Subresources.Status != nil
		out.scale = v.Subresources.Scale
	}
	if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
		if err := out.readSchema(v.Schema); err != nil {
			return nil, err
		}
	}
	out.columns = newColumns(v.AdditionalPrinterColumns)
	for _, f := range v.SelectableFields {
		p, err := newFieldPath(f.JSONPath)
		if err != nil {
			return nil, err
		}
		out.selectable = append(out.selectable, p)
	}
	out.validators = sync.OnceValues(out.newValidators)
	return out, nil
}

func (v *version) readSchema(s *v1.CustomResourceValidation) error {
	in := &internal.CustomResourceValidation{}
	if err := v1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(s.DeepCopy(), in,
		nil); err != nil {
		return fmt.Errorf("read schema of %s: %w", v.gvk, err)
	}
	v.props = in.OpenAPIV3Schema
	str, err := structural.NewStructural(v.props)
	if err != nil {
		if v.preserve {
			return nil // schemas of old definitions may support validation only
		}
		return fmt.Errorf("read schema of %s: %w", v.gvk, err)
	}
	v.structure = str.DeepCopy() // because it shares defaults with props
	if v.preserve {
		return nil
	}
	if err := defaulting.PruneDefaults(v.structure); err != nil {
		return fmt.Errorf("prune defaults of %s: %w", v.gvk, err)
	}
	return nil
}

func (v *version) newValidators() (*validators, error) {
	compiled := &validators{}
	var err error
	if compiled.object, _, err = schemavalidation.NewSchemaValidator(v.props); err != nil {
		return nil, fmt.Errorf("validator of %s: %w", v.gvk, err)
	}
	if v.status && v.props != nil {
		if s, ok := v.props.Properties["status"]; ok {
			if compiled.status, _, err = schemavalidation.NewSchemaValidator(&s); err != nil {
				return nil, fmt.Errorf("validator of the status of %s: %w", v.gvk, err)
			}
		}
	}
	compiled.rules = cel.NewValidator(v.structure, true, celconfig.PerCallLimit)
	return compiled, nil
}
