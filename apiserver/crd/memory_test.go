// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestOneCopyOfSchemas: a served definition has no schema of its own, and uses that of the definition's newest form.
func TestOneCopyOfSchemas(t *testing.T) {
	schema := func() *v1.CustomResourceValidation {
		return &v1.CustomResourceValidation{OpenAPIV3Schema: &v1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]v1.JSONSchemaProps{"size": {Type: "integer"}},
		}}
	}
	crd := &v1.CustomResourceDefinition{}
	crd.Name = "widgets.example.com"
	crd.Spec.Group = "example.com"
	crd.Spec.Names.Plural = "widgets"
	crd.Spec.Versions = []v1.CustomResourceDefinitionVersion{{
		Name:    "v1",
		Served:  true,
		Storage: true,
		Schema:  schema(),
	}}
	vs, err := newVersions(crd, nil)
	if err != nil {
		t.Fatal(err)
	}
	v := vs.byName["v1"]
	if v.source.Load() != crd.Spec.Versions[0].Schema || v.spec.Schema != nil {
		t.Error("the version has a schema of its own")
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
	newer := crd.DeepCopy() // as a client's update makes it
	vs.share(newer)
	if v.source.Load() != newer.Spec.Versions[0].Schema {
		t.Error("the schema of the earlier definition is still in use")
	}
	structure, err := v.structure()
	if err != nil || structure.Properties["size"].Type != "integer" {
		t.Errorf("compiled: %+v, %v", structure, err)
	}
}
