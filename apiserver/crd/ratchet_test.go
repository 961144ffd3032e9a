// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"keelson/apiserver/servertest"
)

// everywhere puts the schema FIELD at the root, into a struct, into the items of a list with keys and into the values
// of a map.
const everywhere = `
type: object
properties:
  field: FIELD
  other: {type: string}
  struct: {type: object, properties: {field: FIELD, other: {type: string}}}
  list:
    type: array
    maxItems: 5
    x-kubernetes-list-type: map
    x-kubernetes-list-map-keys: [key]
    items: {type: object, required: [key], properties: {key: {type: string}, field: FIELD, other: {type: string}}}
  map:
    type: object
    maxProperties: 5
    additionalProperties: {type: object, properties: {field: FIELD, other: {type: string}}}
`

// arrays puts the schema FIELD into items of lists whose items have no identity.
const arrays = `
type: object
properties:
  atomicArray: {type: array, maxItems: 9, items: FIELD}
  setArray: {type: array, maxItems: 9, x-kubernetes-list-type: set, items: FIELD}
`

const (
	foos    = `{field: foo, struct: {field: foo}, list: [{key: foo, field: foo}, {key: bar, field: foo}], map: {foo: {field: foo}, bar: {field: foo}}}`
	others  = `{field: foo, other: x, struct: {field: foo, other: x}, list: [{key: foo, field: foo, other: x}, {key: bar, field: foo, other: x}, {key: baz, field: new, other: x}], map: {foo: {field: foo, other: x}, bar: {field: foo}}}`
	news    = `{field: new, struct: {field: new}, list: [{key: foo, field: new}, {key: bar, field: new}], map: {foo: {field: new}, bar: {field: new}}}`
	words   = `{atomicArray: [foo, bar], setArray: [foo, bar]}`
	further = `{atomicArray: [foo, bar, new], setArray: [foo, bar, new]}`
	plain   = `{type: string, maxLength: 5}`
)

var (
	dotted  = []string{"field", "struct.field", "list[0].field", "list[1].field", "map.foo.field", "map.bar.field"}
	indexed = []string{"field", "struct.field", "list[0].field", "list[1].field", "map[foo].field", "map[bar].field"}
	lists   = []string{"atomicArray", "setArray"}
)

// TestRatchetingEverywhere tightens a schema behind an object's back and applies the object again: what is known to
// be unchanged passes, what changed or may have changed is judged, and rules about changes always are.
func TestRatchetingEverywhere(t *testing.T) {
	custom := servertest.StartCustom(t)
	for name, tc := range map[string]struct {
		shape, before, after string
		first, then          string
		label                bool     // the second object has a label
		want                 []string // paths of the errors, none when it is accepted
	}{
		"schema-unchanged":    {everywhere, plain, `{type: string, enum: [new]}`, foos, foos, true, nil},
		"schema-others":       {everywhere, plain, `{type: string, enum: [new]}`, foos, others, false, nil},
		"schema-uncorrelated": {arrays, plain, `{type: string, enum: [new]}`, words, further, true, lists},
		"schema-changed":      {everywhere, plain, `{type: string, enum: [foo]}`, foos, news, false, dotted},
		"rule-unchanged": {
			everywhere, plain, `{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "self == 'new'"}]}`,
			foos, others, false, nil,
		},
		"rule-uncorrelated": {
			arrays, plain, `{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "self == 'new'"}]}`, words,
			further, true, lists,
		},
		"rule-changed": {
			everywhere, plain, `{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "self == 'foo'"}]}`,
			foos, news, false, indexed,
		},
		"transition": {
			everywhere, plain, `{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "self != oldSelf"}]}`,
			foos, foos, true, indexed,
		},
		"optional-old-same": {
			everywhere, plain,
			`{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "!oldSelf.hasValue() || self != oldSelf.value()", optionalOldSelf: true}]}`,
			foos, foos, true, indexed,
		},
		"optional-old-new": {
			everywhere, plain,
			`{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "!oldSelf.hasValue() || self != oldSelf.value()", optionalOldSelf: true}]}`,
			foos, news, false, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			plural := strings.ReplaceAll(name, "-", "") + "s"
			kindName := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
			custom.Define(servertest.Definition(plural, kindName, strings.ReplaceAll(tc.shape, "FIELD", tc.before)))
			apply := func(text string, label bool) error {
				u := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
					t.Fatal(err)
				}
				u.SetAPIVersion("example.com/v1")
				u.SetKind(kindName)
				u.SetName("test")
				if label {
					u.SetLabels(map[string]string{"foo": "bar"})
				}
				_, err := custom.In("v1", plural).Apply(t.Context(), "test", u, metav1.ApplyOptions{
					FieldManager: "manager",
				})
				return err
			}
			if err := apply(tc.first, false); err != nil {
				t.Fatal(err)
			}
			custom.Reshape(t, plural, strings.ReplaceAll(tc.shape, "FIELD", tc.after))
			err := apply(tc.then, tc.label)
			if len(tc.want) == 0 && err != nil {
				t.Errorf("got %v, want it accepted", err)
			}
			for _, path := range tc.want {
				if err == nil || !strings.Contains(err.Error(), path+": ") && !strings.Contains(err.Error(), path+"[") {
					t.Errorf("got %v, want an error of %s", err, path)
				}
			}
		})
	}
}
