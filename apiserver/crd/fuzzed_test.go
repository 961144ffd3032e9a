// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"keelson/api/apiextensions"
	"keelson/api/kind/kindtest"
)

const definition = `
metadata: {name: ships.example.com}
spec:
  group: example.com
  names: {plural: ships, singular: ship, kind: Ship, listKind: ShipList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.masts, statusReplicasPath: .status.masts, labelSelectorPath: .status.selector}}
    selectableFields: [{jsonPath: .spec.flag}]
    additionalPrinterColumns: [{name: Flag, type: string, jsonPath: .spec.flag}, {name: First, type: string, jsonPath: '.spec.crew[0].name'}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [flag]
            x-kubernetes-validations: [{rule: 'self.masts < 9', message: too many masts}, {rule: '!has(oldSelf.flag) || self.flag == oldSelf.flag'}]
            properties:
              flag: {type: string, pattern: '^[a-z]+$', maxLength: 20}
              masts: {type: integer, minimum: 0, default: 3}
              draught: {x-kubernetes-int-or-string: true}
              cargo: {type: object, x-kubernetes-preserve-unknown-fields: true, nullable: true}
              holds: {type: object, additionalProperties: {type: number}}
              crew:
                type: array
                maxItems: 50
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, rank: {type: string, enum: [mate, cook], default: mate}}}
              template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {masts: {type: integer}, selector: {type: string}}}
`

// TestUnreadableColumn: a column whose path cannot be read, which validation lets pass, ends the columns; the kind is
// served.
func TestUnreadableColumn(t *testing.T) {
	cols := newColumns([]v1.CustomResourceColumnDefinition{
		{Name: "A", JSONPath: ".a"},
		{Name: "B", JSONPath: ".b{"},
		{Name: "C", JSONPath: ".c"},
	})
	if len(cols) != 1 || cols[0].header.Name != "A" {
		t.Errorf("got %+v", cols)
	}
}

// FuzzCustom: a definition that is let in can be served, and its versions take any object through all that the server
// does with it.
func FuzzCustom(f *testing.F) {
	def, err := yaml.YAMLToJSON([]byte(definition))
	if err != nil {
		f.Fatal(err)
	}
	for _, spec := range []string{
		`{"flag":"red","masts":2,"draught":"3m","holds":{"a":1.5},"crew":[{"name":"a"},{"name":"b","rank":"cook"}],"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}}`,
		`{"flag":"R","masts":9,"cargo":null,"unknown":{"a":[1]},"crew":[{"name":"a"},{"name":"a"},{"rank":"boy"}]}`,
		`null`,
	} {
		f.Add(def,
			[]byte(`{"apiVersion":"example.com/v1","kind":"Ship","metadata":{"name":"a","namespace":"b"},"spec":`+spec+
				`,"status":{"masts":1}}`))
	}
	f.Add([]byte(`{"spec":{"versions":[{"schema":{},"selectableFields":[{"jsonPath":".a"}]}]}}`), []byte(`{}`))
	k := apiextensions.CustomResourceDefinition()
	f.Fuzz(func(t *testing.T, def, doc []byte) {
		crd := &v1.CustomResourceDefinition{}
		if json.Unmarshal(def, crd) != nil {
			return
		}
		k.Default(crd)
		k.PrepareCreate(crd)
		if len(k.Validate(crd)) > 0 {
			return
		}
		crd.Status.AcceptedNames = crd.Spec.Names
		for i := range crd.Spec.Versions {
			v, err := newVersion(crd, &crd.Spec.Versions[i])
			if err != nil {
				t.Fatalf("the definition is valid, but: %v", err)
			}
			if obj, _, err := v.read(doc, true); err == nil {
				kindtest.Exercise(t, v.kind(), obj)
			}
		}
	})
}
