// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSchemasAreNotKept: a served definition and one that is remembered have no decoded schema; that of a version is
// unpacked when it is used.
func TestSchemasAreNotKept(t *testing.T) {
	crd := &v1.CustomResourceDefinition{}
	crd.Name = "widgets.example.com"
	crd.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "a": "b"}
	crd.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	crd.Spec.Group = "example.com"
	crd.Spec.Names.Plural = "widgets"
	crd.Spec.Versions = []v1.CustomResourceDefinitionVersion{{
		Name:    "v1",
		Served:  true,
		Storage: true,
		Schema: &v1.CustomResourceValidation{OpenAPIV3Schema: &v1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]v1.JSONSchemaProps{"size": {Type: "integer"}},
		}},
	}}
	kept := withoutSchemas(crd)
	if kept.Spec.Versions[0].Schema != nil || kept.ManagedFields != nil || len(kept.Annotations) != 1 {
		t.Errorf("what is kept has a schema, managed fields, or the applied configuration: %+v", kept)
	}
	if crd.Spec.Versions[0].Schema == nil || crd.ManagedFields == nil || len(crd.Annotations) != 2 {
		t.Error("the definition of the watch cache was changed")
	}
	changed := withOwnStatus(crd)
	changed.Labels = map[string]string{"a": "b"}
	changed.Status.StoredVersions = []string{"v1"}
	if crd.Labels != nil || crd.Status.StoredVersions != nil {
		t.Error("a copy for a change of the status changes the original")
	}
	if changed.Spec.Versions[0].Schema != crd.Spec.Versions[0].Schema {
		t.Error("a change of the status copies the schemas")
	}
	vs, err := newVersions(crd, nil)
	if err != nil {
		t.Fatal(err)
	}
	v := vs.byName["v1"]
	if v.spec.Schema != nil {
		t.Error("the version has a decoded schema")
	}
	structure, err := v.structure()
	if err != nil || structure.Properties["size"].Type != "integer" {
		t.Errorf("compiled: %+v, %v", structure, err)
	}
}
